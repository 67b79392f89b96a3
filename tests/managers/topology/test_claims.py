"""Claimed devices in what is shown of the machine."""

from __future__ import annotations

from kubelet_trio.managers.topology import (
    ClaimedDevice,
    ContainerHoldings,
    MachineDevice,
    MachineHoldings,
    with_claims,
)


def test_claimed_devices_come_to_what_containers_have() -> None:
    plugged = MachineDevice("example.com/disk", "d0", 1)
    web = ContainerHoldings("ns", "p", "web", devices={"example.com/disk": ("d0",)})
    before = MachineHoldings(containers=(web,), devices=(plugged,))
    gpu, shared = ClaimedDevice("gpu", "pool/g0", healthy=False), ClaimedDevice("nic", "pool/n0")
    claimed = {("ns", "p", "web"): [gpu, shared], ("ns", "q", "x"): [shared], ("ns", "q", "y"): []}
    after = with_claims(before, claimed)
    assert {(c.pod, c.container): dict(c.devices) for c in after.containers} == {
        ("p", "web"): {"example.com/disk": ("d0",), "gpu": ("pool/g0",), "nic": ("pool/n0",)},
        ("q", "x"): {"nic": ("pool/n0",)},
    }
    assert after.devices == (
        plugged,
        MachineDevice("gpu", "pool/g0", None, healthy=False),
        MachineDevice("nic", "pool/n0"),
    )
    assert with_claims(before, {}) == before
