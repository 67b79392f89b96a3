"""What the wheel holds."""

from __future__ import annotations

import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]


def test_the_wheel_has_every_module_and_says_that_it_is_typed(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    assert {"kubelet_trio/py.typed", "kubelet_trio/install/kubelet-trio.service"} <= names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "kubelet_trio").rglob("*.py")}
    assert modules <= names
