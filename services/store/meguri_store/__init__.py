"""The store: the records of a partition's URLs and hosts, in immutable Parquet generations and a delta in memory."""
