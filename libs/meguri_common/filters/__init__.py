"""Filters over URL keys: small sets that answer "certainly absent" or "maybe there", never wrongly "absent".

A key is (host_key, path_key). Filters hash it with fixed mixing functions of their own (`kernels.bloom`), so that
a blob written by one process is read by any other.
"""
