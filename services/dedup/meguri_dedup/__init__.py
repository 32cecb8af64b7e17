"""The dedup service: which URLs of a partition were seen before, exactly; admits each new one once."""
