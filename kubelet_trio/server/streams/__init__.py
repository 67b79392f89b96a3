"""Exec, attach and port-forward."""
