"""The prioritizer: what is worth fetching. OPIC cash, reputation of hosts, budgets, penalties, priority."""
