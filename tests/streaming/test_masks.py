"""Masks of WebSocket clients: the function of `websockets`, and ours where it was not built."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.streaming import masks


def in_c() -> masks.Masking:
    found = masks.mask_in_c()
    assert found is not None  # the wheels have it
    return found


@pytest.mark.parametrize("apply", [in_c(), masks.mask_in_python], ids=["C", "Python"])
@given(data=st.binary(max_size=300), mask=st.binary(min_size=4, max_size=4), at=st.integers(0, 9))
def test_a_mask_is_put_on_byte_by_byte(
    apply: masks.Masking, data: bytes, mask: bytes, at: int
) -> None:
    wanted = bytes(b ^ mask[n % 4] for n, b in enumerate(data[at:]))
    assert apply(data[at:], mask) == apply(memoryview(data)[at:], mask) == wanted


def test_only_the_c_module_is_loaded_not_its_package() -> None:
    script = "; ".join(
        [
            "import sys, kubelet_trio.streaming.masks as masks",
            "print(masks.apply_mask is masks.mask_in_python)",
            "print(*(n for n in sys.modules if n.startswith(('websockets', 'asyncio.events'))))",
            "import websockets.speedups",  # another part of the program may still do so
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False", "websockets.speedups"]


def test_without_the_package_the_agent_takes_masks_off_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert masks.mask_in_c() is None
