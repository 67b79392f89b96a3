"""Seams for projected volumes: service account tokens, trust anchors of ClusterTrustBundles, and
certificates that are issued for pods.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from lightkube.models.core_v1 import ClusterTrustBundleProjection, Pod

from kubelet_trio.model import PodUid
from kubelet_trio.objects.errors import ObjectError
from kubelet_trio.objects.memory import KnownToken, TokenRequest


class TokenRequester(Protocol):
    """Returns tokens: the same one until it is due for renewal (80 % of its lifetime)."""

    async def token(self, request: TokenRequest) -> str:
        """Return a valid token. Raises `ObjectError`."""
        ...

    async def issue(self, request: TokenRequest) -> KnownToken:
        """Return a valid token with its times. Raises `ObjectError`."""
        ...

    def forget(self, uid: PodUid) -> None:
        """Drop the tokens of a pod that is gone."""
        ...


class NoTokens:
    """The `TokenRequester` of a node without an API server: it has no tokens."""

    async def token(self, request: TokenRequest) -> str:
        return (await self.issue(request)).text

    async def issue(self, request: TokenRequest) -> KnownToken:
        raise ObjectError(
            "service account tokens need an API server: "
            f'there is no token for service account "{request.service_account}"'
        )

    def forget(self, uid: PodUid) -> None:
        """Do nothing: no token was kept."""


class TrustBundles(Protocol):
    """Returns trust anchors, and wakes the pods that have some when bundles change."""

    async def anchors(self, source: ClusterTrustBundleProjection, uid: PodUid) -> bytes:
        """Return the anchors that a source of a pod's volume selects, as PEM certificates.

        Raises `ObjectError`: there are none, and the source is not optional; or they cannot be
        read now.
        """
        ...

    def forget(self, uid: PodUid) -> None:
        """Wake a pod no more: it is gone."""
        ...


class CredentialBundle(NamedTuple):
    """A pod's private key and the certificates for it, both PEM."""

    key: bytes
    chain: bytes  # the pod's certificate, then intermediate ones

    def __repr__(self) -> str:
        return "CredentialBundle()"  # never the key


class PodCertificates(Protocol):
    """Gets certificates for pods, renews them in time, and wakes the pods that get a new one."""

    async def credentials(self, pod: Pod, volume: str, index: int) -> CredentialBundle:
        """Return the certificate for the podCertificate source `index` of a projected volume.

        The first call requests it. Raises `ObjectError`: it is not issued yet, or never will be.
        """
        ...

    def forget(self, uid: PodUid) -> None:
        """Drop keys and certificates of a pod that is gone."""
        ...


class NoTrustBundles:
    """The `TrustBundles` of a node that reads none."""

    def __init__(
        self, why: str = "ClusterTrustBundle projection is not supported in static kubelet mode"
    ) -> None:
        self._why = why

    async def anchors(self, source: ClusterTrustBundleProjection, uid: PodUid) -> bytes:
        raise ObjectError(self._why)

    def forget(self, uid: PodUid) -> None:
        """Do nothing: no pod is known."""


class NoPodCertificates:
    """The `PodCertificates` of a node that requests none."""

    def __init__(self, why: str = "certificates of pods need an API server") -> None:
        self._why = why

    async def credentials(self, pod: Pod, volume: str, index: int) -> CredentialBundle:
        raise ObjectError(self._why)

    def forget(self, uid: PodUid) -> None:
        """Do nothing: no certificate is kept."""
