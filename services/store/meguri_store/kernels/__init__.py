"""Compiled loops of the store; importing a module here imports numba."""
