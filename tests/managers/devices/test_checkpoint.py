"""The checkpoint of devices is the Go kubelet's, to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.managers.devices.checkpoint import (
    DeviceCheckpointError,
    decode_checkpoint,
    encode_checkpoint,
)
from kubelet_trio.managers.devices.types import DeviceShare, DeviceState
from kubelet_trio.model import PodUid

# Written by Go kubelets (published in people's notes on GPU nodes).
NO_PODS = (
    b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":'
    b'["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}},"Checksum":3952659280}'
)
ONE_POD = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3",'
    b'"ContainerName":"check","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},'
    b'"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],"RegisteredDevices":'
    b'{"nvidia.com/gpu":["tegra"]}},"Checksum":3660592824}'
)
UID = PodUid("bf52b2cd-b611-4e79-86b1-280b283185c3")


def test_a_go_kubelets_checkpoint_is_read() -> None:
    found = decode_checkpoint(ONE_POD)
    share = found.state.shares(UID, "check")["nvidia.com/gpu"]
    assert share.by_node == {-1: ("tegra",)}
    assert share.response is not None
    assert b"NVIDIA_VISIBLE_DEVICES" in share.response
    assert found.registered == {"nvidia.com/gpu": ("tegra",)}


@pytest.mark.parametrize("data", [NO_PODS, ONE_POD])
def test_a_go_kubelets_checkpoint_is_written_back_byte_for_byte(data: bytes) -> None:
    found = decode_checkpoint(data)
    assert encode_checkpoint(found.state, found.registered) == data


def test_reservations_are_not_in_a_checkpoint() -> None:
    state = DeviceState().with_share(UID, "c", "a.com/b", DeviceShare({-1: ("d",)}))
    assert decode_checkpoint(encode_checkpoint(state, {})).state == DeviceState()


def test_text_is_escaped_as_go_does() -> None:
    state = DeviceState().with_share(UID, "c", "a.com/b", DeviceShare({-1: ("<&>",)}, b""))
    data = encode_checkpoint(state, {})
    assert b'["\\u003c\\u0026\\u003e"]' in data
    assert b'"AllocResp":""' in data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"Data":1}',
        ONE_POD.replace(b"tegra", b"other"),
        ONE_POD.replace(b"3660592824", b"3660592825"),
        # Before 1.20 there were no NUMA nodes.
        ONE_POD.replace(b'{"-1":["tegra"]}', b'["tegra"]'),
        b"[" * 100_000,
    ],
)
def test_a_damaged_checkpoint_is_an_error(data: bytes) -> None:
    with pytest.raises(DeviceCheckpointError):
        decode_checkpoint(data)


names = st.text(st.characters(codec="utf-8"), max_size=8)
shares = st.builds(
    DeviceShare,
    st.dictionaries(st.integers(-1, 70), st.lists(names, max_size=3).map(tuple), max_size=3),
    st.binary(max_size=20),
)
states = st.dictionaries(
    names.map(PodUid),
    st.dictionaries(names, st.dictionaries(names, shares, min_size=1, max_size=2), min_size=1),
    max_size=3,
).map(DeviceState)


@given(states, st.dictionaries(names, st.lists(names, max_size=3).map(tuple), max_size=3))
def test_what_is_written_is_read_again(
    state: DeviceState, registered: dict[str, tuple[str, ...]]
) -> None:
    found = decode_checkpoint(encode_checkpoint(state, registered))
    assert (found.state, found.registered) == (state, registered)
