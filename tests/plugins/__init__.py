"""Registration of plugins."""
