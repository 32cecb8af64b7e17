"""Compiled building blocks: hashing, unaligned memory, the decorator that every kernel uses.

Importing a kernel module imports numba (0.4-0.9 s): commands that handle one URL don't.
"""
