"""The daemon whole, as a process of its own."""
