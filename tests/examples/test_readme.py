"""The README's commands name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import click

from kubelet_trio.cli.main import cli

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_commands_of_the_readme_exist_with_their_options() -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    called = re.findall(r"bin/kubelet-trio (\w+)([^#\n]*)", script)
    assert [name for name, _ in called] == ["check", "install"]
    context = click.Context(cli)
    for name, rest in called:
        command = cli.get_command(context, name)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(rest.split()) <= known
