"""What a peer may get wrong in a protobuf message."""

from __future__ import annotations

import dataclasses
from typing import Any

import betterproto2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.cri import v1
from kubelet_trio.model import encode_bytes, encode_message, parse_message
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


class Colour(betterproto2.Enum):
    NONE = 0
    RED = 1


_SCALARS = (
    *((float, kind) for kind in ("double", "float")),
    *((int, f"{sign}int{bits}") for sign in ("", "u", "s") for bits in (32, 64)),
    *((int, f"{sign}fixed{bits}") for sign in ("", "s") for bits in (32, 64)),
    *((bool, "bool"), (str, "string"), (bytes, "bytes")),
)
# A field of each type, and a list of each.
_FIELDS: list[tuple[Any, Any]] = [
    *((of, betterproto2.field(1 + n, kind)) for n, (of, kind) in enumerate(_SCALARS)),
    *(
        (list[of], betterproto2.field(21 + n, kind, repeated=True))  # type: ignore[valid-type]
        for n, (of, kind) in enumerate(_SCALARS)
    ),
    (Colour, betterproto2.field(41, "enum", default_factory=lambda: Colour(0))),
    (list[Colour], betterproto2.field(42, "enum", repeated=True)),
    (
        dict[str, Colour],
        betterproto2.field(43, "map", map_meta=betterproto2.map_meta("string", "enum")),
    ),
    (
        dict[int, v1.Mount],
        betterproto2.field(44, "map", map_meta=betterproto2.map_meta("int32", "message")),
    ),
    (v1.Mount | None, betterproto2.field(45, "message", optional=True, group="either")),
    (int | None, betterproto2.field(46, "uint32", optional=True, group="either")),
    (list[v1.Mount], betterproto2.field(47, "message", repeated=True)),
]
Every: Any = dataclasses.make_dataclass(
    "Every",
    [(f"field_{n}", of, made) for n, (of, made) in enumerate(_FIELDS)],
    bases=(betterproto2.Message,),
    eq=False,
    repr=False,
)
_ONES = (1.5, -2.5, -3, -4, 5, 1 << 63, -7, -8, 9, 10, -11, -12, True, "n", b"\xff")
_COLOURS = (Colour.RED, [Colour.RED, Colour.NONE], {"": Colour.RED, "b": Colour.NONE})
_MOUNTS = ({3: v1.Mount(container_path="/b"), 0: v1.Mount()}, v1.Mount(readonly=True))
EVERY = Every(*_ONES, *([one, one] for one in _ONES), *_COLOURS, *_MOUNTS, None, [v1.Mount()])


def test_messages_come_back_as_they_were() -> None:
    assert parse_message(Every, bytes(EVERY)) == EVERY
    assert bytes(parse_message(Every, bytes(EVERY))) == bytes(EVERY)
    assert parse_message(Every, b"") == Every()
    assert parse_message(v1.ContainerStatus, b"").labels is not v1.ContainerStatus().labels
    assert parse_message(v1.ContainerStatus, bytes(STATUS)) == STATUS
    assert parse_message(v1.ContainerStats, bytes(STATS)) == STATS
    for message in (EVERY, STATUS, STATS, CONFIG, v1.ContainerStatus()):
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


@given(
    st.sampled_from([EVERY, STATUS, STATS, CONFIG]),
    st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=3), st.booleans()), max_size=3),
)
def test_what_is_decoded_is_what_betterproto_decodes(
    message: betterproto2.Message, edits: list[tuple[int, bytes, bool]]
) -> None:
    data = bytes(message)
    for place, more, replaces in edits:
        data = data[:place] + more + data[place + len(more) * replaces :]
    try:
        found = parse_message(type(message), data)
    except (ValueError, EOFError):
        return
    expected = type(message).parse(data)
    assert found == expected
    assert vars(found).keys() == vars(expected).keys()
    assert encode_message(found) == bytes(expected)  # the unknown fields too


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


def test_messages_share_no_list_or_map() -> None:
    one, other = (parse_message(v1.ContainerStatus, b"") for _ in range(2))
    one.labels["a"] = "b"
    one.mounts.append(v1.Mount())
    assert other == v1.ContainerStatus()


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (b"\x0a\x01k\x12\x01v", {"k": "v"}),
        (b"\x12\x01v\x0a\x01k", {"k": "v"}),
        (b"\x0a\x01k", {"k": ""}),
        (b"\x12\x01v", {"": "v"}),
        (b"", {"": ""}),
        (b"\x0a\x00\x12\x00", {"": ""}),
        (b"\x0a\x01k\x12\x01v\x18\x05", {"k": "v"}),  # and a field that is unknown
        (b"\x0a\x01a\x0a\x01k\x12\x01v", {"k": "v"}),  # the last one counts
        (b"\x0a\x01k\x12\x80\x01" + b"v" * 128, {"k": "v" * 128}),
        (b"\x0a\x01k\x12\x81\x00v", {"k": "v"}),  # a number longer than it need be
    ],
)
def test_an_entry_of_a_map_may_have_any_form(entry: bytes, found: dict[str, str]) -> None:
    wire = encode_bytes(7, entry)
    assert parse_message(v1.PodSandboxConfig, b"\x3a\x04\x0a\x00\x12\x00" + wire).annotations == {
        "": "",
        **found,
    }


@pytest.mark.parametrize(
    "entry", [b"\x0a\x05k", b"\x0a\x01k\x12", b"\x0a", b"\x0a\x01\xff\x12\x00"]
)
def test_an_entry_of_a_map_that_is_cut_short_or_no_text_is_refused(entry: bytes) -> None:
    with pytest.raises((ValueError, EOFError)):
        parse_message(v1.PodSandboxConfig, encode_bytes(7, entry))
