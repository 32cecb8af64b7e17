"""Compiled loops over bytes and columns; importing them imports numba."""
