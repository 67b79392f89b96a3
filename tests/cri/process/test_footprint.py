"""What the embedded runtime costs those who do not use it, and those who do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conformance.cases import FOREVER, Box
from tests.cri.process.conftest import ProcessCase
from tests.cri.process.processes import parent

_LIMIT = 2_500  # KiB of its own; a Python of its own would have some 4,500


def modules_after(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return set(ran.stdout.decode().split())


def test_nobody_else_pays_for_it() -> None:
    loaded = modules_after("import kubelet_trio.cri")
    assert not [name for name in loaded if name.startswith("kubelet_trio.cri.process")]


def test_it_loads_next_to_nothing_that_the_agent_has_not() -> None:
    base = modules_after(
        "import msgspec, structlog, trio; from kubelet_trio.cri import v1; v1.PodSandbox"
    )
    loaded = modules_after("from kubelet_trio.cri import ProcessRuntime") - base
    assert {name.split(".")[0] for name in loaded} <= {"kubelet_trio", "array", "pwd", "resource"}


def test_a_shim_loads_nothing_of_the_agent() -> None:
    from kubelet_trio.cri import process

    place = str(Path(process.__file__).parent)
    loaded = modules_after(f"import sys; sys.path.append({place!r}); import shim.nursery")
    assert not {"kubelet_trio", "trio", "msgspec", "typing"} & loaded


async def test_shims_share_their_memory(case: ProcessCase, box: Box) -> None:
    for number in range(3):
        container_id = await box.start(FOREVER, f"c{number}")
    _, pid = await case.runtime.container_status(container_id, verbose=True)
    rollup = Path(f"/proc/{parent(pid)}/smaps_rollup").read_text()
    fields = {line.split(":")[0]: line.split()[1] for line in rollup.splitlines()[1:]}
    own = int(fields["Private_Dirty"]) + int(fields["Private_Clean"])
    assert own < _LIMIT, rollup
