"""Lets CRI's messages come with the first use of one.

Two hundred classes are a third of what importing the library takes. Imported by the package
before anything that imports them.
"""

from __future__ import annotations

from kubelet_trio._deferred import defer, spare_metadata

spare_metadata()
defer("kubelet_trio.cri.generated.runtime.v1")
