"""`warmpool rollout COMMAND`."""
