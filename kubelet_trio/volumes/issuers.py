"""Gets what the sources of projected volumes need: tokens, trust anchors, certificates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.objects import (
    CredentialBundle,
    NoPodCertificates,
    NoTokens,
    NoTrustBundles,
    ObjectError,
    PodCertificates,
    TokenRequest,
    TokenRequester,
    TrustBundles,
)
from kubelet_trio.volumes.payloads import token_requests
from kubelet_trio.volumes.spec import VolumeSpec


@dataclass(frozen=True, slots=True)
class Issuers:
    """The issuers for the sources of projected volumes."""

    tokens: TokenRequester = field(default_factory=NoTokens)
    bundles: TrustBundles = field(default_factory=NoTrustBundles)
    certificates: PodCertificates = field(default_factory=NoPodCertificates)

    async def complete(self, spec: VolumeSpec) -> VolumeSpec:
        """Return a spec with what its sources need: each the value, or the error."""
        if spec.kind != "projected":
            return spec
        tokens = {request: await self._token(request) for request in token_requests(spec)}
        issued: dict[int, bytes | CredentialBundle | ObjectError] = {}
        for index, source in enumerate(spec.source.sources or ()):
            try:
                if source.clusterTrustBundle is not None:
                    uid = pod_uid(spec.pod)
                    issued[index] = await self.bundles.anchors(source.clusterTrustBundle, uid)
                elif source.podCertificate is not None:
                    issued[index] = await self.certificates.credentials(spec.pod, spec.name, index)
            except ObjectError as exc:
                issued[index] = exc
        return replace(spec, tokens=tokens, issued=issued)

    def forget(self, uid: PodUid) -> None:
        """Drop what was issued for a pod that is gone."""
        for issuer in (self.tokens, self.bundles, self.certificates):
            issuer.forget(uid)

    async def _token(self, request: TokenRequest) -> str | ObjectError:
        try:
            return await self.tokens.token(request)
        except ObjectError as exc:
            return exc
