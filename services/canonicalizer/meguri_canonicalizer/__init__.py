"""The canonicaliser: which canonical URL, and which key, a link found on a page stands for."""
