"""Variables from files."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import EnvVar, EnvVarSource, FileKeySelector

from kubelet_trio.containers import ContainerConfigError, container_env
from kubelet_trio.containers.env.files import parse_env_file
from tests.containers.make import container, pod

FILE = """
# settings
A='1'   # the first
  B='two words $HOME \\n'
EMPTY=''
SHELL= 'x'
LINES='one
two'
A='2'
"""


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("A", "1"),
        ("B", "two words $HOME \\n"),
        ("EMPTY", ""),
        ("SHELL", ""),
        ("LINES", "one\ntwo"),
        ("NONE", None),
    ],
)
def test_values_are_read_as_a_shell_reads_them(key: str, expected: str | None) -> None:
    assert parse_env_file(FILE).get(key) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nA", "line 2: missing '='"),
        ("='1'", "line 1: empty variable name"),
        ("A ='1'", "line 1: whitespace before '=' is not allowed"),
        ("A=1", "line 1: value must be enclosed in single quotes"),
        ("A='1'x", "line 1: unexpected content after closing quote"),
        ("A='1\n2", "line 1: unclosed single quote"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="invalid environment variable format") as caught:
        parse_env_file(text).get("B")
    assert str(caught.value).endswith(message)


def of_file(key: str, path: str = "env", optional: bool | None = None) -> dict[str, str]:
    ref = FileKeySelector(key, path, "work", optional)
    spec = container(env=[EnvVar("X", valueFrom=EnvVarSource(fileKeyRef=ref))])
    files = {("work", "env"): parse_env_file(FILE)}
    return dict(container_env(pod(spec), spec, files=files).variables)


def test_an_optional_file_or_key_may_be_missing() -> None:
    assert of_file("A") == {"X": "1"}
    assert of_file("NONE", optional=True) == {}
    assert of_file("A", "other", optional=True) == {}
    # Upstream's words (TestMakeEnvironmentVariablesWithFileKeyRef); what follows them is ours.
    missing = 'environment variable key "NONE" not found in file "env" of volume work'
    with pytest.raises(ContainerConfigError, match=missing):
        of_file("NONE")
    with pytest.raises(ContainerConfigError, match="couldn't parse env file: volume work has no"):
        of_file("A", "other")


def test_a_file_that_cannot_be_read_is_named() -> None:
    ref = FileKeySelector("A", "env", "work")
    spec = container(env=[EnvVar("X", valueFrom=EnvVarSource(fileKeyRef=ref))])
    with pytest.raises(ContainerConfigError) as caught:
        container_env(pod(spec), spec, files={("work", "env"): parse_env_file("A = '1'")})
    assert str(caught.value) == (
        "couldn't parse env file: file env of volume work: invalid environment variable format "
        "at line 1: whitespace before '=' is not allowed"
    )


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_only_a_newline_ends_a_line(odd: str) -> None:
    assert parse_env_file(f"A='1{odd}2'\r\nB='3'").get("A") == f"1{odd}2"
    assert parse_env_file(f"A='1{odd}2'\r\nB='3'").get("B") == "3"


def test_what_comes_before_a_broken_line_counts() -> None:
    found = parse_env_file("A='1'\nB\nC='2'")
    assert found.get("A") == "1"
    with pytest.raises(ValueError, match="line 2"):
        found.get("C")
