"""Defers the generated CRI messages until one is used.

Their two hundred classes take a third of the time that importing the library takes. The package
imports this module before any that imports the messages.
"""

from __future__ import annotations

from kubelet_trio._deferred import defer, spare_metadata

spare_metadata()
defer("kubelet_trio.cri.generated.runtime.v1")
