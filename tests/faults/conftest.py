"""Every test gets a `Bed`, once for each runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.bed import Bed, MakeBed
from tests.harness import Containerd, missing


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    with Containerd() as running:
        yield running


@pytest.fixture(params=["process", "containerd"])
def make_bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeBed]:
    """Make beds, one after the other; each is closed with all its pods."""
    made: list[Bed] = []
    if request.param == "containerd":
        if lacks := missing():
            pytest.skip(f"no real containers here: {', '.join(lacks)}")
        runtime: Containerd | None = request.getfixturevalue("containerd")
    else:
        runtime = None

    def make(**settings: Any) -> Bed:
        made.append(Bed(tmp_path / f"bed{len(made)}", runtime, **settings))
        return made[-1]

    yield make
    for bed in made:
        bed.close()


@pytest.fixture
def bed(make_bed: MakeBed) -> Bed:
    """A running agent with one pod, `steady`, that no test touches."""
    bed = make_bed()
    bed.agent.start()
    bed.agent.put(bed.pod("steady"))
    bed.agent.wait_ready("steady")
    return bed
