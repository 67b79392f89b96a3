"""Logs over HTTP: of containers, of the host's files and of its services."""
