"""Resource claims as the pod resources API shows them."""

from __future__ import annotations

from kubelet_trio.managers.claims import Claim, ClaimDevice, ClaimRef
from kubelet_trio.managers.podresources import ClaimDevice as Shown
from kubelet_trio.managers.podresources import ClaimUse, claim_uses


def test_a_claim_is_shown_with_all_of_its_devices() -> None:
    claim = Claim(
        ClaimRef("ns", "one", "u"),
        drivers={
            "nic": (ClaimDevice("p", "n0", ("r",), share_id="s"),),
            "gpu": (ClaimDevice("p", "g0", (), ("v/c=g0", "v/c=g0b")),),
        },
    )
    (found,) = claim_uses([claim])
    assert found == ClaimUse(
        "one",
        "ns",
        (
            Shown("gpu", "p", "g0", ("v/c=g0", "v/c=g0b")),
            Shown("nic", "p", "n0", (), "s"),
        ),
    )
