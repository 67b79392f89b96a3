"""The parameters of a pod's CSI volume, from the volume's source and the CSIDriver object.

Pure. Texts are the Go kubelet's (pkg/volume/csi/csi_mounter.go).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lightkube.models.core_v1 import Secret
from lightkube.models.storage_v1 import CSIDriver, CSIDriverSpec

from kubelet_trio.model import metadata, pod_key, pod_uid, rfc3339
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.objects import (
    KnownToken,
    ObjectError,
    ObjectNotFoundError,
    TokenRequest,
    csi_driver_key,
    secret_content,
    secret_key,
)
from kubelet_trio.volumes.csi.data import EPHEMERAL, PERSISTENT, check_driver_name, inline_handle
from kubelet_trio.volumes.csi.types import CsiVolume
from kubelet_trio.volumes.spec import VolumeSpec
from kubelet_trio.volumes.used import used_volumes

_WITH_FS_TYPE = "ReadWriteOnceWithFSType"  # the API's default of fsGroupPolicy
_FOR_ONE_NODE = ("ReadWriteOnce", "ReadWriteOncePod")
_TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
_DEFAULT_LIFETIME = 3600  # seconds of a token; the API server's default


@dataclass(frozen=True, slots=True)
class SecretUse:
    """A reference to a secret for the driver."""

    field: str  # NodeStageSecretRef or NodePublishSecretRef
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class VolumeUse:
    """A pod's volume, for its driver."""

    spec: VolumeSpec
    volume: CsiVolume
    driver: CSIDriverSpec  # an empty one if there is no CSIDriver object
    has_driver_object: bool
    is_inline: bool
    access_mode: str
    fs_type: str
    attributes: Mapping[str, str]
    stage_secret: SecretUse | None
    publish_secret: SecretUse | None

    @property
    def read_only(self) -> bool:
        """Whether it is published read-only: unless another of the pod's volumes names the same
        claim and may be written to.
        """
        claim = self.spec.claim
        if not self.spec.read_only or claim is None or claim.metadata is None:
            return self.spec.read_only
        name = claim.metadata.name
        sources = (volume.persistentVolumeClaim for volume in used_volumes(self.spec.pod))
        return all(s.readOnly for s in sources if s is not None and s.claimName == name)

    @property
    def lifecycle(self) -> str:
        return EPHEMERAL if self.is_inline else PERSISTENT

    @property
    def is_attachable(self) -> bool:
        """Whether the attach controller attaches it first: unless attachRequired says no."""
        return not self.is_inline and self.driver.attachRequired is not False


def volume_use(spec: VolumeSpec) -> VolumeUse:
    """Return the parameters of a volume for its driver.

    Raises ValueError if the name of its driver is none, and ObjectError if the CSIDriver object
    cannot be read.
    """
    check_driver_name(spec.source.driver)
    driver = _driver_spec(spec)
    if spec.persistent is None:
        return _inline_use(spec, driver)
    source = spec.source
    modes = spec.persistent.spec.accessModes if spec.persistent.spec is not None else None
    stage, publish = source.nodeStageSecretRef, source.nodePublishSecretRef
    return VolumeUse(
        spec,
        CsiVolume(source.driver, source.volumeHandle),
        driver or CSIDriverSpec(),
        driver is not None,
        is_inline=False,
        access_mode=(modes or ["ReadWriteOnce"])[0],
        fs_type=source.fsType or "",
        attributes=source.volumeAttributes or {},
        stage_secret=stage
        and SecretUse("NodeStageSecretRef", stage.namespace or "", stage.name or ""),
        publish_secret=publish
        and SecretUse("NodePublishSecretRef", publish.namespace or "", publish.name or ""),
    )


def check_lifecycle(use: VolumeUse) -> None:
    """Raise ValueError if the driver does not support such volumes.

    supportsVolumeLifecycleMode in pkg/volume/csi.
    """
    text = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode "
    text += f'"{use.lifecycle}" not supported by driver {use.volume.driver} '
    if not use.has_driver_object:
        if use.is_inline:
            raise ValueError(f"{text}(no CSIDriver object)")
        return
    supported = use.driver.volumeLifecycleModes or [PERSISTENT]
    if use.lifecycle not in supported:
        names = " ".join(f'"{mode}"' for mode in supported)
        raise ValueError(f"{text}(only supports [{names}])")


def secret_values(
    use: VolumeUse, secret: SecretUse | None, text: str = "fetching {} failed: "
) -> dict[str, str]:
    """Return a secret's content for the driver. Raises ObjectError.

    Args:
        use: the volume.
        secret: None: the driver gets none.
        text: of an error, before its cause; `{}` stands for the field and the secret.
    """
    if secret is None:
        return {}
    where = text.format(f"{secret.field} {secret.namespace}/{secret.name}")
    try:
        found = use.spec.objects.get(secret_key(secret.namespace, secret.name), Secret)
        return {key: value.decode() for key, value in secret_content(found).items()}
    except UnicodeDecodeError as exc:
        # The fields of the protocol are strings.
        raise ObjectError(f"{where}a value of the secret is not valid UTF-8") from exc
    except (ObjectError, ValueError) as exc:
        raise ObjectError(
            f"{where}kubernetes.io/csi: failed to find the secret {secret.name} in the namespace "
            f"{secret.namespace} with error: {exc}"
        ) from exc


def pod_attributes(use: VolumeUse) -> dict[str, str]:
    """Return the pod's facts for a driver with podInfoOnMount (getPodInfoAttrs)."""
    if not use.driver.podInfoOnMount:
        return {}
    pod = use.spec.pod
    return {
        "csi.storage.k8s.io/pod.name": pod_key(pod).name,
        "csi.storage.k8s.io/pod.namespace": pod_key(pod).namespace,
        "csi.storage.k8s.io/pod.uid": metadata(pod).uid or "",
        "csi.storage.k8s.io/serviceAccount.name": pod_spec(pod).serviceAccountName or "",
        "csi.storage.k8s.io/ephemeral": "true" if use.is_inline else "false",
    }


def token_requests_of(use: VolumeUse) -> Iterator[TokenRequest]:
    """Yield the tokens that the driver wants of the pod's service account."""
    pod = use.spec.pod
    for wanted in use.driver.tokenRequests or ():
        yield TokenRequest(
            pod_key(pod),
            pod_uid(pod),
            pod_spec(pod).serviceAccountName or "default",
            wanted.audience or "",
            wanted.expirationSeconds or _DEFAULT_LIFETIME,
        )


def token_values(tokens: Mapping[TokenRequest, KnownToken]) -> dict[str, str]:
    """Return the driver's tokens as one JSON text: a TokenRequestStatus by audience."""
    if not tokens:
        return {}
    found = {
        request.audience: {
            "token": token.text,
            "expirationTimestamp": rfc3339(token.expires_at),
        }
        for request, token in tokens.items()
    }
    return {_TOKENS: json.dumps(found, sort_keys=True, separators=(",", ":"))}


def sets_group(use: VolumeUse) -> bool:
    """Whether the kubelet gives the volume to the pod's fsGroup (supportsFSGroup).

    Raises ValueError for an fsGroupPolicy that is none.
    """
    spec, policy = use.spec, use.driver.fsGroupPolicy or _WITH_FS_TYPE
    if policy not in ("None", "File", _WITH_FS_TYPE):
        raise ValueError(
            f"kubernetes.io/csi: mounter.SetupAt failed to check fsGroup policy: {policy} is none"
        )
    if spec.fs_group is None or policy == "None" or use.read_only:
        return False
    if policy == "File":
        return True
    if spec.persistent is None:
        return bool(use.fs_type)
    modes = spec.persistent.spec.accessModes if spec.persistent.spec is not None else None
    return bool(use.fs_type) and any(mode in _FOR_ONE_NODE for mode in modes or ())


def _driver_spec(spec: VolumeSpec) -> CSIDriverSpec | None:
    """Return the CSIDriver object's spec, None if there is none. Raises ObjectError."""
    try:
        return spec.objects.get(csi_driver_key(spec.source.driver), CSIDriver).spec
    except ObjectNotFoundError:
        return None  # it is optional


def _inline_use(spec: VolumeSpec, driver: CSIDriverSpec | None) -> VolumeUse:
    source = spec.source
    secret = source.nodePublishSecretRef
    return VolumeUse(
        spec,
        CsiVolume(source.driver, inline_handle(spec.uid, spec.name)),
        driver or CSIDriverSpec(),
        driver is not None,
        is_inline=True,
        access_mode="ReadWriteOnce",
        fs_type=source.fsType or "",
        attributes=source.volumeAttributes or {},
        stage_secret=None,
        publish_secret=secret
        and SecretUse("NodePublishSecretRef", spec.namespace, secret.name or ""),
    )
