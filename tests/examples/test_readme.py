"""The README's commands name what there is."""

from __future__ import annotations

import re
from pathlib import Path

from kubelet_trio.config.load import load_settings

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_configuration_of_the_readme_is_one_that_the_agent_takes(tmp_path: Path) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    (text,) = re.findall(r"<<'END'\n(.*?)^END$", script, re.DOTALL | re.MULTILINE)
    (tmp_path / "kubelet.yaml").write_text(text)
    (flags,) = re.findall(r"kubelet-trio run (.*)$", script, re.MULTILINE)
    given = [flag.replace("kubelet.yaml", str(tmp_path / "kubelet.yaml")) for flag in flags.split()]
    settings = load_settings(given)
    assert settings.config.static_pod_path == "/etc/kubernetes/manifests"
    assert not any("deprecated" in note for note in settings.notes)
