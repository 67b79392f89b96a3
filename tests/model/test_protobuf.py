"""What a peer may get wrong in a protobuf message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.cri import v1
from kubelet_trio.model import encode_message, parse_message
from kubelet_trio.probes.generated.grpc.health.v1 import HealthCheckResponse
from kubelet_trio.volumes.csi.generated.csi import v1 as csi

STATUS = v1.ContainerStatus(
    id="c",
    metadata=v1.ContainerMetadata(name="main", attempt=3),
    created_at=-5,
    labels={"a": "b"},
    mounts=[v1.Mount(container_path="/a")],
    user=v1.ContainerUser(linux=v1.LinuxContainerUser(uid=1, supplemental_groups=[2, 3])),
)
STATS = v1.ContainerStats(memory=v1.MemoryUsage(usage_bytes=v1.UInt64Value(value=7)))
CONFIG = v1.ContainerConfig(
    image=v1.ImageSpec(image="busybox"),
    command=["sh", "-c"],
    envs=[v1.KeyValue(key="A", value=b"B")],
    linux=v1.LinuxContainerConfig(resources=v1.LinuxContainerResources(cpu_shares=-2)),
    tty=True,
)


def test_messages_come_back_as_they_were() -> None:
    assert parse_message(v1.ContainerStatus, bytes(STATUS)) == STATUS
    assert parse_message(v1.ContainerStats, bytes(STATS)) == STATS
    for message in (STATUS, STATS, CONFIG, v1.ContainerStatus()):
        assert encode_message(message) == bytes(message)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x08\x05", "field 1 has wire type 0, not 2"),  # a number for a text
        (b"\x12\x02\x0d\x00", "cut short"),  # within a message within it
        (b"\x12\x05\x0d\x00\x00\x00\x00", "ContainerMetadata: field 1 has wire type 5"),
        (b"\x22\x01\x05", "field 4 has wire type 2, not 0"),  # a list for one number
        (b"\x0a\x05c", "cut short"),
        (b"\x0a", "cut short"),
        (b"\x0b", "unknown wire type 3"),
        (b"\x18" + b"\xff" * 10 + b"\x01", "varint is too long"),
        (b"\xf8\x3f\x01" * 257, "more than 256 unknown fields"),
    ],
)
def test_what_is_no_such_message_is_refused_by_name(data: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_message(v1.ContainerStatus, data)


def test_a_list_of_numbers_comes_packed_or_singly() -> None:
    packed = parse_message(v1.LinuxContainerUser, b"\x1a\x02\x02\x03")
    assert packed == parse_message(v1.LinuxContainerUser, b"\x18\x02\x18\x03")
    assert packed.supplemental_groups == [2, 3]


def test_a_containers_health_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="field 1 has wire type 5, not 0"):
        parse_message(HealthCheckResponse, b"\x0d\x00\x00\x00\x00")


@given(st.binary(max_size=60))
def test_bytes_are_a_message_or_a_value_error(data: bytes) -> None:
    try:
        status = parse_message(v1.ContainerStatus, data)
    except (ValueError, EOFError):
        return
    assert isinstance(status.id, str)
    assert isinstance(status.created_at, int)
    assert all(isinstance(mount, v1.Mount) for mount in status.mounts)


def test_a_message_with_secrets_is_shown_without_them() -> None:
    staging = csi.NodeStageVolumeRequest(
        volume_id="vol-1",
        publish_context={"device": "sda"},
        secrets={"user": "someone", "password": "letmein"},
    )
    assert repr(staging) == (
        "NodeStageVolumeRequest(volume_id='vol-1', publish_context={'device': 'sda'}, "
        "secrets={'user': '***stripped***', 'password': '***stripped***'})"
    )
    pull = v1.PullImageRequest(
        image=v1.ImageSpec(image="app:1"), auth=v1.AuthConfig(username="me", password="letmein")
    )
    assert "letmein" not in repr(pull)
    assert "AuthConfig(username='me', password='***stripped***')" in repr(pull)


@pytest.mark.parametrize(
    "message",
    [
        csi.NodePublishVolumeRequest(secrets={"k": "letmein"}, volume_context={"token": "letmein"}),
        csi.NodeExpandVolumeRequest(secrets={"k": "letmein"}),
    ],
)
def test_csi_secrets_are_never_in_a_repr(message: object) -> None:
    assert "letmein" not in repr(message)
    assert "***stripped***" in repr(message)


_MESSAGES = (v1.ContainerStatus, v1.ContainerStats, v1.LinuxContainerUser, v1.ContainerConfig)
_SEEDS = (bytes(STATUS), bytes(STATS), b"\x1a\x02\x02\x03", bytes(CONFIG))


@given(
    st.sampled_from(_MESSAGES),
    st.sampled_from(_SEEDS),
    st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3)), max_size=4),
)
def test_whatever_is_decoded_is_what_betterproto_makes_of_it(
    message_type: Any, seed: bytes, edits: list[tuple[int, bytes]]
) -> None:
    data = seed
    for at, put in edits:
        data = data[:at] + put + data[at + 1 :]
    try:
        found = parse_message(message_type, data)
    except ValueError:
        return
    wanted = message_type.parse(data)
    assert found == wanted
    assert vars(found).keys() == vars(wanted).keys()
    assert encode_message(found) == bytes(wanted)  # the unknown fields too


def test_messages_share_no_list_or_map() -> None:
    one, other = (parse_message(v1.ContainerStatus, b"") for _ in range(2))
    one.labels["a"] = "b"
    one.mounts.append(v1.Mount())
    assert other == v1.ContainerStatus()
