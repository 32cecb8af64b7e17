"""Telemetry: what each instance of a service says about itself and its partitions, about once a second.

Lossy by design: a sample that can't be sent is dropped and counted, and nothing ever waits for one. Whoever reads
them must bear loss, repeats and disorder.
"""
