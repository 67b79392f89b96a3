from __future__ import annotations

import pytest

from kubelet_trio.cri import RuntimeState


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("containerd", "v2.1.0", ""),
        ("containerd", "2.10.3", ""),
        ("containerd", "1.6.20~ds1", "it must be 2.1 or later"),
        ("containerd", "v2.0.5", "image volumes are not supported by containerd v2.0.5"),
        ("cri-o", "1.31.0", ""),
        ("cri-o", "1.30.2", "it must be 1.31 or later"),
        ("process", "0.1.0", "not supported by the runtime process"),
        ("other", "0.1", ""),
        ("containerd", "", ""),
    ],
)
def test_a_runtime_that_cannot_mount_images_is_known_by_its_version(
    name: str, version: str, reason: str
) -> None:
    told = RuntimeState(name=name, version=version).no_image_volumes
    assert told == "" if not reason else reason in told
