"""Messages and stubs of grpcio and protobuf, made from protos/: the independent peer's own."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_PROTOS = Path(__file__).resolve().parents[2] / "protos"


@cache
def stubs(name: str) -> tuple[Any, Any]:
    """Return the modules of a proto file: its messages, and the stubs of its services."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as directory:
        done = protoc.main(
            [
                *("protoc", f"-I{_PROTOS}", f"--python_out={directory}"),
                *(f"--grpc_python_out={directory}", f"{name}.proto"),
            ]
        )
        assert done == 0, "protoc failed"
        sys.path.insert(0, os.fspath(directory))
        try:
            importlib.invalidate_caches()
            messages = importlib.import_module(f"{name}_pb2")
            return messages, importlib.import_module(f"{name}_pb2_grpc")
        finally:
            sys.path.remove(os.fspath(directory))
