"""Resource claims on a node without an API server: documents, allocated by the node itself.

documents    which claims the pods use, and what they are made from
state        the allocated claims as a value, and its file
source       allocates, and gives back what no pod uses any more; its one writer
"""

from kubelet_trio.managers.claims.local.documents import (
    ClaimDocuments,
    claim_documents,
    with_claim_statuses,
)
from kubelet_trio.managers.claims.local.source import LocalClaims, OfferedSlices, SliceReader
from kubelet_trio.managers.claims.local.state import CLAIMS_FILE, load_local_claims

__all__ = [
    "CLAIMS_FILE",
    "ClaimDocuments",
    "LocalClaims",
    "OfferedSlices",
    "SliceReader",
    "claim_documents",
    "load_local_claims",
    "with_claim_statuses",
]
