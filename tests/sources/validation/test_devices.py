"""Validation of `volumeDevices`, and of block volumes among the documents."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sources.make import container, manifest, problems

CLAIM = {"name": "raw", "persistentVolumeClaim": {"claimName": "c"}}
VOLUMES = [CLAIM, {**CLAIM, "name": "raw-2"}, {"name": "tmp", "emptyDir": {}}]
D = "spec.containers[0].volumeDevices"


def with_devices(*devices: tuple[str, str], **fields: Any) -> dict[str, Any]:
    made = [{"name": name, "devicePath": path} for name, path in devices]
    return manifest(volumes=VOLUMES, containers=[container(volumeDevices=made, **fields)])


def test_block_volumes_of_claims_are_taken() -> None:
    assert problems(with_devices(("raw", "/dev/a"), ("raw-2", "/dev/b"))) == []
    init = container("init", volumeDevices=[{"name": "raw", "devicePath": "/dev/a"}])
    assert problems(manifest(volumes=[CLAIM], initContainers=[init])) == []


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (with_devices(("", "/dev/a")), f"{D}[0].name: Required value"),
        (with_devices(("raw", "")), f"{D}[0].devicePath: Required value"),
        (with_devices(("none", "/dev/a")), f'{D}[0].name: Not found: "none"'),
        (
            with_devices(("tmp", "/dev/a")),
            f'{D}[0].name: Invalid value: "tmp": can only use volume source type of '
            "PersistentVolumeClaim or Ephemeral for block mode",
        ),
        (
            with_devices(("raw", "/dev/a"), ("raw", "/dev/b")),
            f'{D}[1].name: Invalid value: "raw": must be unique',
        ),
        (
            with_devices(("raw", "/dev/a"), ("raw-2", "/dev/a")),
            f'{D}[1].devicePath: Invalid value: "/dev/a": must be unique',
        ),
        (
            with_devices(("raw", "/dev/../a")),
            f'{D}[0].devicePath: Invalid value: "/dev/../a": can not contain backsteps',
        ),
        (
            with_devices(("raw", "dev/a")),
            f'{D}[0].devicePath: Invalid value: "dev/a": must be an absolute path',
        ),
        (
            with_devices(("raw", "/a"), volumeMounts=[{"name": "raw", "mountPath": "/b"}]),
            f'{D}[0].name: Invalid value: "raw": must not already exist in volumeMounts',
        ),
        (
            with_devices(("raw", "/a"), volumeMounts=[{"name": "tmp", "mountPath": "/a"}]),
            f'{D}[0].devicePath: Invalid value: "/a": must not already exist as a path in '
            "volumeMounts",
        ),
    ],
)
def test_what_is_no_block_volume_is_refused(raw: dict[str, Any], expected: str) -> None:
    (problem,) = problems(raw)
    assert problem.startswith(expected)


def test_documents_of_block_volumes_are_taken() -> None:
    claim = {"volumeName": "raw", "volumeMode": "Block"}
    volume = {"volumeMode": "Block", "local": {"path": "/dev/sdx"}}
    for kind, spec in (("PersistentVolumeClaim", claim), ("PersistentVolume", volume)):
        raw = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "raw"}, "spec": spec}
        assert problems(raw) == []
