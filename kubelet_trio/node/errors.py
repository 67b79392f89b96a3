"""The errors of this room.

    CsiNodeError      facts of a CSI driver could not be written to the Node or the CSINode

`capacity` has `ReservationError`, for settings.
"""

from __future__ import annotations


class CsiNodeError(ValueError):
    """Facts of a CSI driver could not be written. The text is for the driver, and for the log."""
