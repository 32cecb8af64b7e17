"""Compiled probes of the filters; importing them imports numba."""
