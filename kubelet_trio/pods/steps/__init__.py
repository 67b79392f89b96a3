"""The steps that a plan names, carried out through the runtime."""
