"""What runs a service: steps as transactions, snapshots, restore, and the fleet's worker."""
