"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A deadline an example would measure the machine's other load, not the code.
settings.register_profile("kubelet-trio", deadline=None, print_blob=True)
settings.load_profile("kubelet-trio")
