"""What is secret shows in no repr, and so in no log, event or error that one slips into."""

from __future__ import annotations

import base64

import pytest
from lightkube.models.core_v1 import EmptyDirVolumeSource, Pod, Secret
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.kube.certificates import ProvenKey
from kubelet_trio.model import PodKey, PodUid
from kubelet_trio.objects import (
    CredentialBundle,
    KnownToken,
    ObjectView,
    TokenRequest,
    secret_key,
)
from kubelet_trio.objects.pod_certificates import IssuedBundle
from kubelet_trio.volumes.csi.client import Access, PublishRequest, StageRequest
from kubelet_trio.volumes.csi.types import CsiVolume
from kubelet_trio.volumes.host.iscsi import IscsiDisk, _Login
from kubelet_trio.volumes.spec import VolumeSpec

SECRET = "s3cr3t-value"
VALUES = {"key": SECRET}
VOLUME = CsiVolume("d", "h")
VIEW = ObjectView(
    {
        secret_key("ns", "s"): Secret(
            metadata=ObjectMeta(name="s"),
            data={"key": base64.b64encode(SECRET.encode()).decode()},
            stringData=VALUES,
        )
    }
)
BUNDLE = CredentialBundle(SECRET.encode(), b"chain")
TOKEN = TokenRequest(PodKey("ns", "p"), PodUid("u"), "default", "", 3600)


@pytest.mark.parametrize(
    "value",
    [
        KnownToken(SECRET, 0.0, 1.0),
        BUNDLE,
        IssuedBundle(BUNDLE, 0.0, 1.0),
        ProvenKey(SECRET, "request"),
        VIEW,
        VolumeSpec(
            Pod(),
            "data",
            "emptyDir",
            EmptyDirVolumeSource(),
            "data",
            objects=VIEW,
            tokens={TOKEN: SECRET},
            issued={0: BUNDLE, 1: SECRET.encode()},
        ),
        StageRequest(VOLUME, "/p", Access(), secrets=VALUES),
        PublishRequest(VOLUME, "/p", Access(), volume_context=VALUES, secrets=VALUES),
        _Login(IscsiDisk("v", ("p",), "iqn", 0, "default", "default"), "tcp", None, VALUES),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_secret_is_in_no_repr(value: object) -> None:
    assert SECRET not in repr(value)
    assert base64.b64encode(SECRET.encode()).decode() not in repr(value)
    assert type(value).__name__ in repr(value)
