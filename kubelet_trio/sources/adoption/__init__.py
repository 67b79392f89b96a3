"""Static pods that another kubelet started: adopted under the UIDs that they run with.

`compare` decides whether a pod in the runtime is a manifest's, `store` keeps the adopted UIDs,
`source` carries it out.
"""

from kubelet_trio.sources.adoption.source import Adopter, AdoptingSource, Takeover
from kubelet_trio.sources.adoption.store import ADOPTED, as_derived, load_adopted

__all__ = ["ADOPTED", "Adopter", "AdoptingSource", "Takeover", "as_derived", "load_adopted"]
