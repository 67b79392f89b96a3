"""CSI: volumes that a driver on this node stages and publishes.

Only the seams of `types` are loaded with this package. Everything else is loaded when a driver
registers, or when a pod first has a CSI volume: its messages cost memory that most nodes spare.
"""

from kubelet_trio.volumes.csi.services import CsiServices
from kubelet_trio.volumes.csi.types import Attachments, Capability, CsiVolume, Driver

__all__ = ["Attachments", "Capability", "CsiServices", "CsiVolume", "Driver"]
