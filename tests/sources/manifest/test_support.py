from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import Pod, Volume

from kubelet_trio.objects import IN_TREE_KINDS
from kubelet_trio.sources.manifest.schema import _fields, _places  # the places the tables speak of
from kubelet_trio.sources.manifest.support import (
    CLUSTER_POD,
    NOT_YET,
    STATIC_POD,
    check_cluster_pod,
)
from tests.sources.make import container, manifest, problems

YET = "not supported by this agent yet"


def of_container(**fields: Any) -> dict[str, Any]:
    return manifest(containers=[container(**fields)])


def of_volume(**source: Any) -> dict[str, Any]:
    return manifest(volumes=[{"name": "v", **source}])


def annotated(key: str) -> dict[str, Any]:
    raw = manifest()
    raw["metadata"]["annotations"] = {key: "x"}
    return raw


C = "spec.containers[0]"


@pytest.mark.parametrize(
    ("raw", "path", "why"),
    [
        (
            of_container(lifecycle={"preStop": {"tcpSocket": {"port": 80}}}),
            f"{C}.lifecycle.preStop.tcpSocket",
            "lifecycle hooks cannot be TCP connections: use exec, httpGet or sleep",
        ),
        (
            of_container(livenessProbe={"httpGet": {"port": 80, "protocol": "HTTP2"}}),
            f"{C}.livenessProbe.httpGet.protocol",
            YET,
        ),
        (
            of_container(startupProbe={"grpc": {"port": 80, "mode": "TLS"}}),
            f"{C}.startupProbe.grpc.mode",
            YET,
        ),
        (
            of_container(
                volumeMounts=[{"name": "v", "mountPath": "/v", "bindMountOptions": ["noexec"]}]
            ),
            f"{C}.volumeMounts[0].bindMountOptions",
            YET,
        ),
        (
            manifest(evictionResponders=[{"name": "x", "priority": 1}]),
            "spec.evictionResponders",
            YET,
        ),
        (manifest(schedulingGroup={"podGroupName": "x"}), "spec.schedulingGroup", YET),
        (
            manifest(readinessGates=[{"conditionType": "x"}]),
            "spec.readinessGates",
            "no component sets conditions",
        ),
        (
            manifest(schedulingGates=[{"name": "x"}]),
            "spec.schedulingGates",
            "Forbidden: a pod that has its node cannot wait for one",
        ),
        (
            manifest(serviceAccount="default"),
            "spec.serviceAccount",
            "static pods may not reference serviceaccounts",
        ),
        (
            manifest(resourceClaims=[{"name": "x"}]),
            "spec.resourceClaims",
            "static pods may not reference resourceclaims",
        ),
        (of_volume(emptyDir={"mode": 448}), "spec.volumes[0].emptyDir.mode", YET),
        (
            of_volume(
                projected={
                    "sources": [{"podCertificate": {"keyType": "ED25519", "signerName": "x/y"}}]
                }
            ),
            "spec.volumes[0].projected.sources[0].podCertificate",
            "static pods may not reference podcertificaterequests",
        ),
        (
            of_volume(configMap={"name": "c", "items": [{"key": "k", "path": "p", "user": 7}]}),
            "spec.volumes[0].configMap.items[0].user",
            YET,
        ),
        (
            of_container(resources={"claims": [{"name": "x"}]}),
            f"{C}.resources.claims",
            "static pods may not reference resourceclaims",
        ),
        (
            of_container(resources={"requests": {"gpu": 1}}),
            f"{C}.resources.requests[gpu]",
            "resources other than cpu, memory, huge pages",
        ),
        (
            manifest(resources={"limits": {"nvidia.com/gpu": 1}}),
            "spec.resources.limits[nvidia.com/gpu]",
            "cpu, memory and huge pages alone",
        ),
        (
            manifest(resources={"claims": [{"name": "x"}]}),
            "spec.resources.claims",
            YET,
        ),
        (
            of_volume(configMap={"name": "c", "defaultUser": 7}),
            "spec.volumes[0].configMap.defaultUser",
            YET,
        ),
        (
            of_volume(ephemeral={}),
            "spec.volumes[0].ephemeral",
            "static pods may not reference persistentvolumeclaims",
        ),
        (
            of_volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}]}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
            "static pods may not reference serviceaccounts",
        ),
        (
            of_volume(projected={"sources": [{"clusterTrustBundle": {"path": "ca"}}]}),
            "spec.volumes[0].projected.sources[0].clusterTrustBundle",
            "static pods may not reference clustertrustbundles",
        ),
        (
            manifest(serviceAccountName="default"),
            "spec.serviceAccountName",
            "static pods may not reference serviceaccounts",
        ),
        (
            manifest(imagePullSecrets=[{"name": "s"}]),
            "spec.imagePullSecrets",
            "static pods may not reference secrets",
        ),
        (
            manifest(ephemeralContainers=[{"name": "e"}]),
            "spec.ephemeralContainers",
            "Forbidden: cannot be set on create",
        ),
        (
            annotated("kubernetes.io/config.mirror"),
            "metadata.annotations[kubernetes.io/config.mirror]",
            "Forbidden",
        ),
        (
            annotated("container.seccomp.security.alpha.kubernetes.io/main"),
            "metadata.annotations[container.seccomp.security.alpha.kubernetes.io/main]",
            "use securityContext.seccompProfile",
        ),
    ],
)
def test_what_is_not_done_is_refused_by_its_path(raw: dict[str, Any], path: str, why: str) -> None:
    (problem,) = problems(raw)
    assert problem.startswith(f"{path}: ")
    assert why in problem


def test_fields_of_init_containers_are_refused_as_well() -> None:
    claims = {"claims": [{"name": "gpu"}]}
    raw = manifest(initContainers=[container("init", resources=claims)])
    (problem,) = problems(raw)
    assert problem.startswith("spec.initContainers[0].resources.claims: ")


@pytest.mark.parametrize(
    "raw",
    [
        of_container(securityContext={}, envFrom=[], lifecycle={}),
        of_container(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}]),
        manifest(securityContext={}, hostUsers=True, os={"name": "linux"}, readinessGates=[]),
        manifest(
            nodeSelector={"a": "b"},
            affinity={
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "preference": {}}
                    ]
                },
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
            },
            tolerations=[{"operator": "Exists"}],
            priorityClassName="system-node-critical",
            priority=2000001000,
            topologySpreadConstraints=[
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
            ],
            schedulerName="mine",
            preemptionPolicy="Never",
            enableServiceLinks=False,
            automountServiceAccountToken=False,
        ),
        of_volume(emptyDir={"medium": "Memory", "sizeLimit": "1Mi"}),
        of_volume(hostPath={"path": "/etc", "type": "Directory"}),
    ],
)
def test_what_asks_for_nothing_or_for_the_scheduler_is_taken(raw: dict[str, Any]) -> None:
    assert problems(raw) == []


def test_every_volume_type_is_supported_or_refused() -> None:
    named = {
        path.rpartition(".")[2]
        for path in [*NOT_YET, *STATIC_POD]
        if path.startswith("spec.volumes[].") and path.count(".") == 2
    }
    types = set(Volume.__struct_fields__) - {"name"}
    assert types - named == {
        *IN_TREE_KINDS,
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "fc",
        "flexVolume",
        "hostPath",
        "image",
        "iscsi",
        "nfs",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    assert named <= types


def test_the_tables_name_fields_that_exist() -> None:
    places = {".".join(steps): set(_fields(kind)) for steps, kind in _places()}
    for path in [*CLUSTER_POD, *STATIC_POD]:
        place, _, field = path.replace("<c>", "containers").rpartition(".")
        assert field.removesuffix("[]") in places[place], path


def of_cluster(raw: dict[str, Any]) -> dict[str, str]:
    """Return what is refused of a pod of the API server, by path."""
    return {e.field: e.message for e in check_cluster_pod(msgspec.convert(raw, Pod))}


@pytest.mark.parametrize(
    ("raw", "path", "why"),
    [
        (
            of_volume(projected={"sources": [{"clusterTrustBundle": {"path": "ca", "user": 7}}]}),
            "spec.volumes[0].projected.sources[0].clusterTrustBundle.user",
            f"owners of single files are {YET}",
        ),
        (
            of_volume(
                projected={
                    "sources": [{"podCertificate": {"keyType": "k", "signerName": "s", "user": 7}}]
                }
            ),
            "spec.volumes[0].projected.sources[0].podCertificate.user",
            f"owners of single files are {YET}",
        ),
        (
            of_container(startupProbe={"grpc": {"port": 80, "mode": "TLS"}}),
            f"{C}.startupProbe.grpc.mode",
            f"gRPC probes over TLS are {YET}",
        ),
    ],
)
def test_what_of_a_cluster_is_not_done_is_refused(raw: dict[str, Any], path: str, why: str) -> None:
    ((field, message),) = of_cluster(raw).items()
    assert field == path
    assert why in message


@pytest.mark.parametrize(
    "raw",
    [
        manifest(
            imagePullSecrets=[{"name": "s"}],
            serviceAccountName="default",
            readinessGates=[{"conditionType": "example.com/x"}],
            securityContext={"seLinuxChangePolicy": "MountOption"},
            resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}],
        ),
        of_volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}]}),
        of_container(resources={"limits": {"example.com/gpu": "1"}, "claims": [{"name": "gpu"}]}),
        of_container(livenessProbe={"grpc": {"port": 80}}),
        annotated("seccomp.security.alpha.kubernetes.io/pod"),
    ],
)
def test_what_a_cluster_gives_is_taken(raw: dict[str, Any]) -> None:
    assert of_cluster(raw) == {}


def test_claims_need_their_gate() -> None:
    raw = manifest(resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
    pod = msgspec.convert(raw, Pod)
    (error,) = check_cluster_pod(pod, claims=False)
    assert error.field == "spec.resourceClaims"
    assert error.message == "the feature gate DynamicResourceAllocation is off"
    plain = msgspec.convert(manifest(resourceClaims=[]), Pod)
    assert check_cluster_pod(plain, claims=False) == []


@pytest.mark.parametrize("policy", ["MountOption", "Recursive"])
def test_either_change_policy_of_selinux_is_taken(policy: str) -> None:
    raw = manifest(securityContext={"seLinuxChangePolicy": policy})
    assert not problems(raw)
    assert of_cluster(raw) == {}


@pytest.mark.parametrize(
    ("kind", "version", "instead"),
    [
        ("cephfs", "1.31", "the CSI driver of the storage"),
        ("flocker", "1.25", "the CSI driver of the storage"),
        ("gitRepo", "1.36", "an emptyDir and an init container that clones into it"),
        ("glusterfs", "1.26", "the CSI driver of the storage"),
        ("photonPersistentDisk", "1.16", "volumes of another type"),
        ("quobyte", "1.25", "the CSI driver of the storage"),
        ("rbd", "1.31", "the CSI driver of the storage"),
        ("scaleIO", "1.22", "the CSI driver of the storage"),
        ("storageos", "1.25", "the CSI driver of the storage"),
    ],
)
def test_a_removed_volume_type_names_its_successor(kind: str, version: str, instead: str) -> None:
    why = f"no kubelet mounts volumes of this type since Kubernetes {version}: use {instead}"
    assert NOT_YET[f"spec.volumes[].{kind}"].why == why
    # Beside what else is wrong with the source.
    assert f"spec.volumes[0].{kind}: {why}" in problems(of_volume(**{kind: {}}))
