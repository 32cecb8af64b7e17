"""Filters over URL keys: small sets that answer "certainly absent" or "maybe there", never wrongly "absent".

`bloom` takes keys one after another and grows; `ribbon` and `sharded` make smaller filters of keys that are known
beforehand, `ribbon_stream` one of keys that stream by. `resident.unmarshal_filter` reads the blob of any of them.

A key is (host_key, path_key). Filters hash it with fixed mixing functions of their own (`kernels.bloom`), so that
a blob written by one process is read by any other.
"""
