"""One run of the corpus a session; every test looks at the same recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.recording import Recording, recorded_here
from tests.harness import Containerd, leftovers, missing
from tests.harness.suites import skip_where_missing


def _lacking() -> list[str]:
    lacks = missing()
    if not Path("/sys/fs/cgroup/cpu").exists():
        lacks.append("no cgroup v1, on which the data was recorded")
    return lacks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_where_missing(items, Path(__file__).parent, "real containers as recorded", _lacking())


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    base = tmp_path_factory.mktemp("golden")
    try:
        with Containerd() as containerd:
            yield recorded_here(containerd, base)
    finally:
        leftovers.unmount_under(base)
