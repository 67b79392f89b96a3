"""Configuration files that are no configuration, whatever they are instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.config import ConfigError
from kubelet_trio.config.files import read_file

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("maxPods: 1\nmaxPods: 2\n", 'duplicate field "maxPods"'),
        (f"maxPods: {'9' * 5000}\n", "Exceeds the limit"),
        ("maxPods: 2024-13-41\n", "month must be in 1..12"),
        (f"maxPods: {'[' * 300}{']' * 300}\n", "nested more than 100 levels deep"),
        (f"maxPods: {'[' * 1500}{']' * 1500}\n", "nest"),  # or a limit of libyaml itself
        ("evictionHard: &a\n  b: *a\n", "at most 50 levels"),
        ("? [a, b]\n: c\n", "unhashable key"),
    ],
)
def test_each_is_a_problem_that_names_the_file(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(HEAD + text)
    with pytest.raises(ConfigError) as caught:
        read_file(path)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{path}: ")
    assert what in problem


def test_a_few_aliases_that_stand_for_a_million_values_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 7)]
    path = tmp_path / "kubelet.yaml"
    path.write_text(HEAD + "\n".join(lines))
    with pytest.raises(ConfigError, match="100000 values, aliases followed"):
        read_file(path)
