"""Compiled loops over the columns of URLs, hosts and messages."""
