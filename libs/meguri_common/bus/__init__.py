"""The bus: one small port, and its adapters."""
