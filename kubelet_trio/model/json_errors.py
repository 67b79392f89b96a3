"""What comes of decoding JSON that somebody else wrote, or that a disk has damaged."""

from __future__ import annotations

import msgspec

# msgspec checks the UTF-8 of strings only where it makes them, and it counts levels: some
# thousand opening brackets are no DecodeError, wherever they stand, skipped fields included.
JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
