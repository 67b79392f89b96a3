"""Messages and services of protos/ for grpcio, made by grpcio-tools when a test needs them."""

from __future__ import annotations

import importlib
import importlib.resources
import os
import sys
from pathlib import Path
from typing import Any

_PROTOS = Path(__file__).resolve().parents[2] / "protos"


def grpcio_stubs(proto: str, directory: Path) -> tuple[Any, Any]:
    """Write the messages and the services of a file of protos/, and import them."""
    from grpc_tools import protoc

    directory.mkdir(exist_ok=True)
    known = str(importlib.resources.files("grpc_tools") / "_proto")
    done = protoc.main(
        [
            "protoc",
            f"-I{_PROTOS}",
            f"-I{known}",
            f"--python_out={directory}",
            f"--grpc_python_out={directory}",
            f"{proto}.proto",
        ]
    )
    assert done == 0, "protoc failed"
    if os.fspath(directory) not in sys.path:
        sys.path.insert(0, os.fspath(directory))
    return importlib.import_module(f"{proto}_pb2"), importlib.import_module(f"{proto}_pb2_grpc")
