"""What `scripts/build-deb`, `build-zipapp` and `build-image` make: the agent, self-contained.

The standard library and pip do it all; see docs/packages.md.
"""
