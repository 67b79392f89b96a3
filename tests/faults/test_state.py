"""State on disk that is cut short or garbage: kept aside, named in the log, rebuilt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.bed import Bed
from tests.harness import eventually


def records(bed: Bed) -> list[Path]:
    found = sorted((bed.agent.root / "pods").glob("*/*.json"))
    assert found
    return found


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "another document"])
def test_a_damaged_record_costs_no_container(bed: Bed, damage: str) -> None:
    steady = bed.pid_of("steady")
    bed.agent.kill()
    damaged = records(bed)
    for path in damaged:
        content = path.read_bytes()
        path.write_bytes(
            {
                "truncated": content[: len(content) // 2],
                "empty": b"",
                "garbage": bytes(range(256)),
                "another document": b"[1, 2]",
            }[damage]
        )
    bed.agent.start()
    bed.agent.wait_ready("steady")
    assert bed.pid_of("steady") == steady
    for path in damaged:
        assert path.with_suffix(".corrupt").exists()
        assert str(path) in bed.agent.output.read_text()
        eventually(path.exists, what=f"{path} is written again")
    # And the pod can still be taken down.
    bed.agent.drop("steady")
    bed.wait_runs({}, within=60)
    bed.agent.wait_gone("steady")


def test_state_that_is_gone_is_rebuilt_from_the_runtime(bed: Bed) -> None:
    steady = bed.pid_of("steady")
    bed.agent.kill()
    for path in records(bed):
        path.unlink()
    bed.agent.start()
    bed.agent.wait_ready("steady")
    assert bed.pid_of("steady") == steady
    eventually(lambda: records(bed), what="the record is there again")
