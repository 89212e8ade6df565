"""The central program: the supply map, its store, its commands, and the client library for everybody else."""
