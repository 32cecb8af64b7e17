"""Compiled loops of the seen-set; importing them imports numba."""
