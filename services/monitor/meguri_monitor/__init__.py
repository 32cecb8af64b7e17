"""The monitor: live rates, lag and health of the fleet, from its telemetry."""
