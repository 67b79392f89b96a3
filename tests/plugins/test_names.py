"""What a plugin may say of itself."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.plugins.claims import Claim, NameClaims
from kubelet_trio.plugins.names import check_offer, shown
from kubelet_trio.plugins.scan import SocketIdentity
from kubelet_trio.plugins.types import PluginOffer

SOCKET = "/var/lib/kubelet/plugins_registry/disk.sock"
anything = st.text(max_size=400) | st.text("./a-", max_size=12)


@pytest.mark.parametrize(
    "name", ["csi", "disk.csi.example.com", "example.com/gpu", "GPU", "a_b", "a--b", "1"]
)
def test_names_of_drivers_and_resources_pass(name: str) -> None:
    assert check_offer("CSIPlugin", name, "", [], SOCKET) == PluginOffer(
        "CSIPlugin", name, SOCKET, ()
    )


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "x/../y", "x//y", "/x", "x/", "-x", "x-", "a b", "a\n", "ä", "a" * 254],
)
def test_other_names_do_not(name: str) -> None:
    with pytest.raises(ValueError, match="invalid plugin name"):
        check_offer("CSIPlugin", name, "", [], SOCKET)


@given(name=anything, endpoint=anything, versions=st.lists(anything, max_size=70))
def test_what_passes_can_be_shown_and_used_as_a_path(
    name: str, endpoint: str, versions: list[str]
) -> None:
    problem = ""
    try:
        offer = check_offer("CSIPlugin", name, endpoint, versions, SOCKET)
    except ValueError as exc:
        problem = str(exc)
    assert len(problem) < 2000
    assert problem.isprintable()
    if problem:
        return
    below = PurePosixPath("/plugins", offer.name)
    assert ".." not in below.parts
    assert below.is_relative_to("/plugins")
    assert below != PurePosixPath("/plugins")
    assert offer.endpoint.startswith("/")
    assert all(text.isprintable() for text in (offer.name, offer.endpoint, *offer.versions))


@given(st.text())
def test_a_foreign_text_is_shown_on_one_line_and_cut(text: str) -> None:
    assert shown(text).isprintable()
    assert len(shown(text[:50])) < 600


def claim(socket: str, age: int, *, is_exclusive: bool = True) -> Claim:
    offer = PluginOffer("CSIPlugin", "disk", f"/{socket}", ())
    return Claim(socket, SocketIdentity(age, age, 1), offer, is_exclusive)


@given(st.permutations([1, 2, 3, 4, 5]), st.data())
def test_the_newest_of_the_living_claims_holds_the_name(
    order: list[int], data: st.DataObject
) -> None:
    """Whatever the order in which sockets are asked, and in which they go."""
    claims, living = NameClaims(), list[Claim]()
    for age in order:
        mine = claim(f"{age}.sock", age)
        got = claims.take(mine)
        assert got == all(mine.is_newer_than(other) for other in living)
        if got:
            for other in living:
                assert other.lost.is_set()
                claims.release(other)  # as its child does then
            living = [mine]
        ends: bool = data.draw(st.booleans())
        if living and ends:
            claims.release(living.pop())
        assert list(claims.held) == living


def test_the_end_of_an_older_claim_leaves_the_newer() -> None:
    claims, old, new = NameClaims(), claim("a", 1), claim("b", 2)
    assert claims.take(old)
    assert claims.take(new)
    assert old.lost.is_set()
    claims.release(old)
    assert claims.held == (new,)
    assert claims.holder(old) is new
    claims.release(new)
    assert claims.holder(old) is None


def test_claims_of_a_shared_name_do_not_meet() -> None:
    claims = NameClaims()
    old, new = claim("a", 1, is_exclusive=False), claim("b", 2, is_exclusive=False)
    assert claims.take(new)
    assert claims.take(old)
    assert not old.lost.is_set()
    assert not new.lost.is_set()
