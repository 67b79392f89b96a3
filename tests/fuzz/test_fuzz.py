"""Every reader of foreign bytes keeps to its word, whatever the bytes.

`KUBELET_TRIO_FUZZ=HOURS` looks for so long, by fresh random numbers, with the time shared out among
the targets. What is found is kept in `corpus/<target>/` and replayed from then on: commit it with
the fix.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.table import TARGETS
from tests.fuzz.target import Target, examine

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = 100  # of a target where nobody asked for more
_BATCH = 500
_HOURS = float(os.environ.get("KUBELET_TRIO_FUZZ", "0"))

_MEMORY = 2 << 30  # bytes that a test may take beside what the run has: beyond that MemoryError


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """What takes too much must fail, not take the machine along."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


each_target = pytest.mark.parametrize("target", TARGETS, ids=[t.name for t in TARGETS])


def directory_of(target: Target) -> Path:
    """Return where a target's entries of the corpus are."""
    return CORPUS / re.sub(r"\W+", "-", target.name)


_ENTRIES = [
    pytest.param(target, path, id=f"{path.parent.name}/{path.name}")
    for target in TARGETS
    for path in sorted(directory_of(target).glob("*"))
]


@each_target
def test_good_examples_are_taken(target: Target) -> None:
    for example in target.examples:
        target.run(example)
        examine(target, example)


@pytest.mark.parametrize(("target", "path"), _ENTRIES)
def test_what_was_found_once_is_not_found_again(target: Target, path: Path) -> None:
    examine(target, path.read_bytes())


def test_every_directory_of_the_corpus_is_a_targets() -> None:
    known = {directory_of(target) for target in TARGETS}
    assert len(known) == len(TARGETS)
    assert set(CORPUS.iterdir()) <= known


@each_target
def test_whatever_comes(target: Target) -> None:
    if not _HOURS:
        look(target, EXAMPLES)
        return
    until = time.monotonic() + _HOURS * 3600 / len(TARGETS)
    while time.monotonic() < until:
        look(target, _BATCH, int.from_bytes(os.urandom(8)))


def look(target: Target, count: int, number: int | None = None) -> None:
    """Try so many examples; the smallest one that fails goes to the corpus."""
    failed: list[bytes] = []

    @settings(
        max_examples=count,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(target.strategy)
    def run(data: bytes) -> None:
        try:
            examine(target, data)
        except BaseException:
            failed[:] = [data]  # hypothesis ends with the smallest
            raise

    try:
        (seed(number)(run) if number is not None else run)()
    except BaseException as exc:
        if failed:
            path = keep(target, failed[0])
            exc.add_note(f"kept as {path.relative_to(CORPUS.parent.parent.parent)}")
        raise


def keep(target: Target, data: bytes) -> Path:
    """Put an entry into the corpus."""
    path = directory_of(target) / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
