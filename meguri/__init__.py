"""The command line, and all services in one process."""
