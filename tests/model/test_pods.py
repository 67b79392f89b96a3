"""What a name says of a resource: which are extended ones, which claims may give."""

from __future__ import annotations

import pytest

from kubelet_trio.model import is_claimable, is_extended


@pytest.mark.parametrize(
    ("resource", "extended", "claimable"),
    [
        ("cpu", False, False),
        ("hugepages-2Mi", False, False),
        ("example.com/dongle", True, True),
        ("kubernetes.io/batch-cpu", False, False),
        ("requests.kubernetes.io/x", False, False),
        ("requests.example.com/dongle", False, False),
        ("deviceclass.resource.kubernetes.io/gpu", False, True),
    ],
)
def test_extended_resources_have_a_domain_of_their_own(
    resource: str, extended: bool, claimable: bool
) -> None:
    assert (is_extended(resource), is_claimable(resource)) == (extended, claimable)
