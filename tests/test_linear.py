"""Every parser of what a pod, a container or a stranger sends does linear work."""

from __future__ import annotations

import operator
import re
from functools import partial

import pytest
from lightkube.models.core_v1 import EnvVar

from kubelet_trio.containers import ContainerConfigError, container_env, expand_from, parse_env_file
from tests.containers.make import container, pod
from tests.harness.linear import Parser, check_linear


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
