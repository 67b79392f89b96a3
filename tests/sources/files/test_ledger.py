from __future__ import annotations

from kubelet_trio.sources import FieldError, ManifestError
from kubelet_trio.sources.files.burst import REMOVED
from kubelet_trio.sources.files.ledger import Ledger
from kubelet_trio.sources.files.scan import DirectoryListing, FileRead, PathKind, Signature
from kubelet_trio.sources.manifest.static import seen_at
from tests.sources.make import load, manifest, names

WALL = 1000.0
A = "/m/a.yaml"


def sign(version: int, written: float = WALL) -> Signature:
    return Signature(int(written * 1e9), 0, version, 1, 1)


def listing(**files: Signature) -> DirectoryListing:
    return DirectoryListing(PathKind.DIRECTORY, {f"/m/{name}.yaml": s for name, s in files.items()})


def good(signature: Signature, *pods: str) -> FileRead:
    return FileRead(signature, load(*[manifest(name) for name in pods]))


def bad(signature: Signature) -> FileRead:
    return FileRead(signature, error=ManifestError(A, [FieldError("", "broken")]))


def known(*pods: str) -> Ledger:
    ledger = Ledger(settle=0.1)
    ledger.take(A, good(sign(1), *pods), "then")
    return ledger


def test_a_file_that_was_just_written_must_hold_still() -> None:
    ledger = Ledger(settle=0.1)
    first = ledger.decide(listing(a=sign(1)), set(), 5.0, WALL)
    assert (first.read, first.again_at) == ((), 5.1)
    changed = ledger.decide(listing(a=sign(2)), set(), 5.1, WALL)
    assert (changed.read, changed.again_at) == ((), 5.1 + 0.1)
    still = ledger.decide(listing(a=sign(2)), set(), 5.1 + 0.1, WALL)
    assert (still.read, still.again_at) == ((A,), None)


def test_a_file_whose_writer_is_done_is_read_at_once() -> None:
    for finished in ({A}, None):
        decision = Ledger(settle=0.1).decide(listing(a=sign(1)), finished, 5.0, WALL)
        assert (decision.read, decision.again_at) == ((A,), None)


def test_a_file_that_nobody_wrote_to_for_a_second_is_read_at_once() -> None:
    old = sign(1, written=WALL - 1)
    assert Ledger(settle=0.1).decide(listing(a=old), set(), 5.0, WALL).read == (A,)


def test_a_file_from_the_future_must_hold_still_like_any_other() -> None:
    ahead = sign(1, written=WALL + 3600)
    ledger = Ledger(settle=0.1)
    assert ledger.decide(listing(a=ahead), set(), 5.0, WALL).read == ()
    assert ledger.decide(listing(a=ahead), set(), 5.1, WALL).read == (A,)


def test_an_unchanged_file_is_not_read_unless_someone_wrote_to_it() -> None:
    ledger = known("web")
    assert ledger.decide(listing(a=sign(1)), set(), 0.0, WALL).read == ()
    assert ledger.decide(listing(a=sign(1)), None, 0.0, WALL).read == ()
    assert ledger.decide(listing(a=sign(1)), {A}, 0.0, WALL).read == (A,)


def test_a_file_is_gone_when_it_stays_gone() -> None:
    ledger = known("web")
    assert ledger.decide(listing(), set(), 0.0, WALL).again_at == 0.1
    assert names(ledger.pods()) == ["web-node1"]
    assert ledger.decide(listing(), set(), 0.1, WALL).again_at is None
    assert ledger.pods() == ()


def test_an_unlinked_file_is_gone_sooner_than_one_renamed_away() -> None:
    ledger = known("web")
    assert ledger.decide(listing(), set(), 1.0, WALL).again_at == 1.1
    unlinked = 1.01  # the look comes a little later
    assert ledger.decide(listing(), set(), 1.012, WALL, {A: unlinked}).again_at == 1.01 + REMOVED
    assert names(ledger.pods()) == ["web-node1"]
    ledger.decide(listing(), set(), 1.01 + REMOVED, WALL)
    assert ledger.pods() == ()


def test_a_file_that_stayed_away_until_the_first_look_is_gone_at_once() -> None:
    ledger = known("web")
    ledger.decide(listing(), set(), 1.0 + REMOVED, WALL, {A: 1.0})
    assert ledger.pods() == ()


def test_an_unlinked_file_that_is_there_again_is_not_read_before_its_writer_is_done() -> None:
    ledger = known("web")
    decision = ledger.decide(listing(a=sign(2)), set(), 1.0, WALL, {A: 1.0})
    assert (decision.read, decision.again_at) == ((), 1.1)
    assert names(ledger.pods()) == ["web-node1"]


def test_a_file_that_comes_back_was_never_gone() -> None:
    ledger = known("web")
    ledger.decide(listing(), set(), 0.0, WALL)
    ledger.decide(listing(a=sign(1)), set(), 0.05, WALL)
    again = ledger.decide(listing(), set(), 0.1, WALL)
    assert again.again_at == 0.2
    assert names(ledger.pods()) == ["web-node1"]


def test_a_broken_file_keeps_its_pods_until_it_parses_again() -> None:
    ledger = known("web")
    ledger.take(A, bad(sign(2)), "now")
    assert names(ledger.pods()) == ["web-node1"]
    assert [str(e) for e, _ in ledger.errors()] == ["/m/a.yaml: broken"]
    ledger.take(A, good(sign(3), "other"), "now")
    assert names(ledger.pods()) == ["other-node1"]
    assert ledger.errors() == []


def test_a_broken_file_that_goes_takes_its_pods_with_it() -> None:
    ledger = known("web")
    ledger.take(A, bad(sign(2)), "now")
    ledger.decide(listing(), set(), 0.0, WALL)
    ledger.decide(listing(), set(), 0.1, WALL)
    assert ledger.pods() == ()
    assert ledger.errors() == []


def test_a_link_to_nowhere_is_broken_and_not_gone() -> None:
    ledger = known("web")
    dangling = DirectoryListing(PathKind.DIRECTORY, broken={A: "leads nowhere"})
    for now in (0.0, 10.0):
        ledger.decide(dangling, set(), now, WALL)
    assert names(ledger.pods()) == ["web-node1"]
    assert len(ledger.errors()) == 1


def test_a_file_that_does_not_open_is_tried_again_at_every_look() -> None:
    ledger = known("web")
    ledger.cannot_read(A, ManifestError(A, [FieldError("", "no")]))
    assert names(ledger.pods()) == ["web-node1"]
    old = sign(1, written=0.0)
    assert ledger.decide(listing(a=old), set(), 9.0, WALL).read == (A,)


def test_an_unchanged_pod_stays_the_same_object_and_keeps_when_it_was_seen() -> None:
    ledger = known("web", "api")
    before = ledger.pods()
    ledger.take(A, good(sign(2), "api", "web", "new"), "now")
    after = ledger.pods()
    assert after[0] is before[1]
    assert after[1] is before[0]
    assert [seen_at(pod) for pod in after] == ["then", "then", "now"]


def test_pods_come_in_the_order_of_their_files() -> None:
    ledger = Ledger(settle=0.1)
    for name in ("b", "a", "c"):
        ledger.take(f"/m/{name}.yaml", good(sign(1), name), "now")
    assert names(ledger.pods()) == ["a-node1", "b-node1", "c-node1"]


def test_pods_of_an_earlier_life_stand_until_their_file_speaks() -> None:
    first, second = load(manifest("a"), manifest("b"))
    ledger = Ledger(0.1, [(A, first), (A, second)])
    assert names(ledger.pods()) == ["a-node1", "b-node1"]
    ledger.take(A, bad(sign(1)), "now")
    assert names(ledger.pods()) == ["a-node1", "b-node1"]
    ledger.take(A, good(sign(2), "a"), "now")
    assert names(ledger.pods()) == ["a-node1"]
