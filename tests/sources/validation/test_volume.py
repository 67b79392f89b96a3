"""Volumes and environment of manifests: what is refused, and what is filled in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sources.make import container, load, manifest, problems

V = "spec.volumes[0]"
C = "spec.containers[0]"


def of_volume(**source: Any) -> dict[str, Any]:
    return manifest(volumes=[{"name": "v", **source}])


def of_projection(*sources: dict[str, Any]) -> dict[str, Any]:
    return of_volume(projected={"sources": list(sources)})


def of_env(source: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return manifest(containers=[container(env=[{"name": "A", "valueFrom": source, **fields}])])


def of_env_from(source: dict[str, Any]) -> dict[str, Any]:
    return manifest(containers=[container(envFrom=[source])])


FIELD = {"fieldRef": {"fieldPath": "metadata.name"}}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (of_volume(configMap={}), f"{V}.configMap.name: Required value"),
        (of_volume(secret={"secretName": ""}), f"{V}.secret.secretName: Required value"),
        (
            of_volume(configMap={"name": "c", "defaultMode": 0o1000}),
            f"{V}.configMap.defaultMode: Invalid value: 512",
        ),
        (
            of_volume(configMap={"name": "c", "items": [{"key": "a", "path": "/a"}]}),
            f"{V}.configMap.items[0].path: Invalid value",
        ),
        (
            of_volume(configMap={"name": "c", "items": [{"key": "a", "path": "a/../b"}]}),
            f"{V}.configMap.items[0].path: Invalid value",
        ),
        (
            of_volume(secret={"secretName": "c", "items": [{"key": "a", "path": "..a"}]}),
            f"{V}.secret.items[0].path: Invalid value",
        ),
        (
            of_volume(downwardAPI={"items": [{"path": "a"}]}),
            f"{V}.downwardAPI.items[0].fieldRef: Required value",
        ),
        (
            of_volume(
                downwardAPI={"items": [{"path": "a", "fieldRef": {"fieldPath": "status.podIP"}}]}
            ),
            f"{V}.downwardAPI.items[0].fieldRef.fieldPath: Invalid value",
        ),
        (
            of_volume(
                downwardAPI={
                    "items": [{"path": "a", "resourceFieldRef": {"resource": "limits.cpu"}}]
                }
            ),
            f"{V}.downwardAPI.items[0].resourceFieldRef.containerName: Required value",
        ),
        (of_projection({}), f"{V}.projected.sources[0]: Required value"),
        (
            of_projection({"secret": {"name": "a"}, "configMap": {"name": "b"}}),
            f"{V}.projected.sources[0].secret: Forbidden",
        ),
        (
            of_projection(
                {"secret": {"name": "a", "items": [{"key": "k", "path": "p"}]}},
                {"configMap": {"name": "a", "items": [{"key": "k", "path": "p"}]}},
            ),
            f'{V}.projected.sources[1]: Invalid value: "p": conflicting duplicate paths',
        ),
        (of_volume(nfs={"server": "s", "path": ""}), f"{V}.nfs.path: Required value"),
        (of_volume(image={}), f"{V}.image.reference: Required value"),
        (
            of_volume(image={"reference": "a", "pullPolicy": "No"}),
            f"{V}.image.pullPolicy: Unsupported value",
        ),
        (
            of_volume(persistentVolumeClaim={"claimName": ""}),
            f"{V}.persistentVolumeClaim.claimName: Required value",
        ),
        (
            manifest(securityContext={"fsGroup": -1}),
            "spec.securityContext.fsGroup: Invalid value: -1",
        ),
        (
            manifest(securityContext={"fsGroupChangePolicy": "No"}),
            "spec.securityContext.fsGroupChangePolicy: Unsupported value",
        ),
        (of_env({}), f"{C}.env[0].valueFrom: Invalid value"),
        (of_env(FIELD, value="1"), f"{C}.env[0].valueFrom: Invalid value"),
        (
            of_env({"fieldRef": {"fieldPath": "metadata.labels"}}),
            f"{C}.env[0].valueFrom.fieldRef.fieldPath: Invalid value",
        ),
        (
            of_env({"resourceFieldRef": {"resource": "limits.gpu"}}),
            f"{C}.env[0].valueFrom.resourceFieldRef.resource: Invalid value",
        ),
        (
            of_env({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}),
            f"{C}.env[0].valueFrom.resourceFieldRef.divisor: Unsupported value",
        ),
        (
            of_env({"configMapKeyRef": {"key": "a"}}),
            f"{C}.env[0].valueFrom.configMapKeyRef.name: Required value",
        ),
        (
            of_env({"secretKeyRef": {"name": "a", "key": ""}}),
            f"{C}.env[0].valueFrom.secretKeyRef.key: Required value",
        ),
        (of_env_from({"prefix": "A_"}), f"{C}.envFrom[0]: Invalid value"),
        (
            of_env_from({"prefix": "A=", "configMapRef": {"name": "a"}}),
            f"{C}.envFrom[0].prefix: Invalid value",
        ),
        (
            of_env_from({"secretRef": {"name": "a"}, "configMapRef": {"name": "a"}}),
            f"{C}.envFrom[0]: Invalid value",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_path(raw: dict[str, Any], expected: str) -> None:
    (found,) = problems(raw)
    assert found.startswith(expected)


def test_what_volumes_and_variables_leave_out_is_filled_in() -> None:
    items = [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]
    raw = manifest(
        containers=[container(env=[{"name": "A", "valueFrom": FIELD}])],
        volumes=[
            {"name": "a", "configMap": {"name": "c"}},
            {"name": "b", "secret": {"secretName": "c", "defaultMode": 0}},
            {"name": "c", "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
            {"name": "d", "image": {"reference": "busybox"}},
        ],
    )
    (pod,) = load(raw)
    assert pod.spec is not None
    config_map, secret, projected, image = pod.spec.volumes or []
    assert config_map.configMap is not None
    assert config_map.configMap.defaultMode == 0o644
    assert secret.secret is not None
    assert secret.secret.defaultMode == 0
    assert projected.projected is not None
    (source,) = projected.projected.sources or []
    assert source.downwardAPI is not None
    (item,) = source.downwardAPI.items or []
    assert item.fieldRef is not None
    assert item.fieldRef.apiVersion == "v1"
    assert image.image is not None
    assert image.image.pullPolicy == "Always"
    (variable,) = pod.spec.containers[0].env or []
    assert variable.valueFrom is not None
    assert variable.valueFrom.fieldRef is not None
    assert variable.valueFrom.fieldRef.apiVersion == "v1"
