from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest
import structlog


@pytest.fixture(autouse=True)
def _quiet_logs() -> Iterator[None]:
    """Drop log lines: these tests crash children by the thousand. `capture_logs` still works."""

    def drop(*_args: object) -> NoReturn:
        raise structlog.DropEvent

    before = structlog.get_config()["processors"][:]
    processors = structlog.get_config()["processors"]
    processors[:] = [drop]
    yield
    processors[:] = before
