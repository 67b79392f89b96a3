"""Every parser of what a pod, a container or a stranger sends does linear work."""

from __future__ import annotations

import operator
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightkube.models.core_v1 import EnvVar

from kubelet_trio.containers import ContainerConfigError, container_env, expand_from, parse_env_file
from kubelet_trio.recorder.masks import mask_bytes, mask_text
from kubelet_trio.volumes.host.flex_driver import FlexDriver, _answer
from kubelet_trio.volumes.host.format import disk_format
from kubelet_trio.volumes.host.iscsi import _iface_parameters, _transport
from kubelet_trio.volumes.mountinfo import parse_mountinfo
from kubelet_trio.volumes.tools import LIMIT, ToolResult
from tests.containers.make import container, pod
from tests.harness.linear import Parser, check_linear

_TRANSPORT = "iface.transport_name = "
_MOUNT = "22 1 8:1 / /a\\040b rw shared:1 - ext4 /dev/sda1 rw\n"


def _expand(text: str) -> str:
    return expand_from(text, {"A": "1"}, 1 << 30)


def _environment(variables: list[EnvVar]) -> object:
    spec = container(env=variables)
    try:
        return container_env(pod(spec), spec)
    except ContainerConfigError as exc:
        return exc


def _chained(n: int) -> list[EnvVar]:
    return [EnvVar(f"V{i}", value=f"$(V{i - 1})x") for i in range(n // 10)]


def _independent(n: int) -> list[EnvVar]:
    return [EnvVar(f"V{i}", value="$(NONE) $$(V1) $") for i in range(n)]


def _after(head: Any, shape: Any, n: int) -> Any:
    return head + shape * n


class _Tools:
    """Tools that all print the same."""

    def __init__(self, output: str) -> None:
        self._done = ToolResult(0, output)

    def run(self, _tool: str, *_arguments: str, limit: float = LIMIT) -> ToolResult:
        return self._done


def _blkid(output: str) -> str:
    return disk_format(_Tools(output), Path("/dev/null"))


def _flex(output: str) -> object:
    return _answer(FlexDriver("d", Path("/d")), "mount", ToolResult(0, output))


PARSERS = [
    *(
        Parser(f"$( expansion of {shape!r}", _expand, partial(operator.mul, shape))
        for shape in ("$(", "$", "$$", "$()", "$(A)", "$(A", ")", "$ ", "x", "(", "$(\n")
    ),
    Parser("$( expansion, closed at the end", _expand, lambda n: "$(" * n + ")"),
    Parser("$( expansion, closed at the start", _expand, lambda n: ")" + "$(" * n),
    *(
        Parser(f"env file of {shape!r}", parse_env_file, partial(operator.mul, shape))
        for shape in (
            "\n",
            "'",
            "A='1'\n",
            "A='\n",
            "#\n",
            "\r",
            " ",
            "A=",
            "A='",
            "='\n'",
            "\u2028",
        )
    ),
    Parser("env file, one value of newlines", parse_env_file, lambda n: "A='" + "\n" * n + "'"),
    Parser("env file, never closed", parse_env_file, lambda n: "A='" + "x\n" * n),
    *(
        Parser(f"{name} of {shape!r}", parse, partial(operator.mul, shape))
        for name, parse, shapes in (
            ("iface record", _iface_parameters, ("iface.a = b\n", "iface.", "\n", " ", "<empty>")),
            ("transport of an iface", _transport, (_TRANSPORT, _TRANSPORT[:-2], " ", "\n")),
            ("blkid", _blkid, ("TYPE=a\n", "=", "\n", "PTTYPE=")),
            ("FlexVolume driver", _flex, ("{", "[", '{"a":', '"', " ", "\n", "9")),
            ("mountinfo", parse_mountinfo, (_MOUNT, "\\040", " ", "\n", " - ")),
        )
        for shape in shapes
    ),
    *(
        Parser(f"secrets in a text of {shape!r}", mask_text, partial(_after, "=", shape))
        for shape in ("a", "pass", "pass=", "pass=x ", 'pass="', "pass='", "-.", " ", "bearer ")
    ),
    *(
        Parser(f"secrets in JSON of {shape!r}", mask_bytes, partial(_after, b"://eyJ", shape))
        for shape in (
            *(b"a", b"a://b", b"-eyJaaaaaaaaa", b"eyJaaaaaaaaa.", b"Bearer ", b" "),
            *(b"-----BEGIN PRIVATE KEY-----", b"-----BEGIN A "),
        )
    ),
    Parser("FlexVolume driver, a message", _flex, lambda n: f'{{"message": "{"x" * n}"}}'),
    Parser("environment, independent", _environment, _independent),
    Parser("environment, chained", _environment, _chained),
]


@pytest.mark.parametrize("parser", PARSERS, ids=[parser.name for parser in PARSERS])
def test_twice_the_text_is_twice_the_work(parser: Parser) -> None:
    check_linear(parser)


def test_the_helper_finds_what_is_quadratic() -> None:
    def pairs(text: str) -> int:
        return sum(1 for a in text for b in text if a == b)

    with pytest.raises(AssertionError):
        check_linear(Parser("pairs", pairs, lambda n: "x" * n), 20)


def test_the_helper_finds_what_is_quadratic_in_c() -> None:
    pattern = re.compile(r"\$\(([^)]*)\)")
    with pytest.raises(AssertionError, match="CPU"):
        check_linear(Parser("pattern", lambda text: pattern.sub("", text), lambda n: "$(" * n), 400)
