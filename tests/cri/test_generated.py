"""The generated code is what the generator writes from protos/, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from kubelet_trio.cri.generated.runtime.v1 import client, server
from kubelet_trio.grpc import Channel
from kubelet_trio.grpc._server import Servable
from kubelet_trio.grpc._status import Cardinality

REPOSITORY = Path(__file__).resolve().parents[2]
GENERATED = [
    Path("kubelet_trio", *room, "generated")
    for room in (
        *(("cri",), ("probes",), ("plugins",), ("volumes", "csi")),
        *(("managers", "podresources"), ("server", "pods_api")),
    )
] + [Path("kubelet_trio/server/pods_api/table")]


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_regenerating_changes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "gen-protos"), "--root", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for generated in GENERATED:
        again, kept = tree(tmp_path / generated), tree(REPOSITORY / generated)
        assert again.keys() == kept.keys()
        assert [name for name in kept if again[name] != kept[name]] == []


def test_stub_and_base_agree_on_every_call() -> None:
    pairs: list[tuple[Any, Servable]] = [
        (client.RuntimeServiceStub, server.RuntimeServiceBase()),
        (client.ImageServiceStub, server.ImageServiceBase()),
    ]
    for stub_type, base in pairs:
        stub = stub_type(Channel("/nowhere"))
        methods = {method._path: method for method in vars(stub).values()}
        handlers = base.__mapping__()
        assert methods.keys() == handlers.keys()
        for path, method in methods.items():
            handler = handlers[path]
            assert handler.request_type is method._request_type
            assert handler.reply_type is method._reply_type
            streams = handler.cardinality is Cardinality.UNARY_STREAM
            assert ("Stream" in type(method).__name__) == streams
    assert len(server.RuntimeServiceBase().__mapping__()) == 37
    assert len(server.ImageServiceBase().__mapping__()) == 6
