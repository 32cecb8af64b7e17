"""All services in one process over the embedded bus: the data folder, the rounds, and the inputs."""
