"""`kubelet-trio`: the table of its commands.

A command's module is imported when it is called: `kubelet-trio pods` must be fast, and only `run`
needs the agent.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from kubelet_trio.cli.colour import is_wanted, paint
from kubelet_trio.cli.local import ROOTS_ROOT


class Entry(NamedTuple):
    """A command that is not imported yet.

    `place` is module:attribute below `kubelet_trio.cli.commands`, `summary` its line of `--help`.
    """

    section: str
    place: str
    summary: str


_RUN, _LOOK, _ACT, _SET_UP = "Run", "Look", "Act", "Set up"
COMMANDS: Mapping[str, Entry] = {
    "run": Entry(_RUN, "run:run", "Run the node agent."),
    "run-pod": Entry(_RUN, "run_pod:run_pod", "Run one pod in the foreground."),
    "validate": Entry(_RUN, "check:validate", "Check manifests and configurations offline."),
    "pods": Entry(_LOOK, "objects:pods", "List the pods of this node."),
    "get": Entry(_LOOK, "objects:get", "List objects by kubectl's names: pods, nodes, events..."),
    "describe": Entry(_LOOK, "objects:describe", "Show all details of pods, or of the node."),
    "why": Entry(_LOOK, "objects:why", "Say why a pod is as it is, and what happens next."),
    "logs": Entry(_LOOK, "objects:logs", "Print the log of a container, or of several."),
    "events": Entry(_LOOK, "objects:events", "List the events of this node."),
    "top": Entry(_LOOK, "usage:top", "Show the current usage of pods, or of the node."),
    "images": Entry(_LOOK, "objects:images", "List the images of this node, and who uses them."),
    "volumes": Entry(_LOOK, "usage:volumes", "List the volumes of claims and drivers."),
    "fleet": Entry(_LOOK, "fleet:fleet", "Serve one page of several nodes."),
    "topology": Entry(_LOOK, "usage:topology", "Draw the machine, and who has what of it."),
    "tree": Entry(_LOOK, "agent:tree", "Show the agent's live supervision tree."),
    "status": Entry(_LOOK, "agent:status", "Show the agent, its runtime and its sources."),
    "agent-log": Entry(_LOOK, "agent:agent_log", "Print the agent's latest log entries."),
    "profile": Entry(_LOOK, "agent:profile", "Profile the running agent."),
    "replay": Entry(_LOOK, "replay:replay", "Replay a recording, and say where it differs."),
    "record": Entry(_LOOK, "record:record", "Pack or show what the agent has recorded."),
    "ui": Entry(_LOOK, "agent:ui", "Open the node page."),
    "version": Entry(_LOOK, "agent:version", "Show the version of command and agent."),
    "help": Entry(_LOOK, "help:help_", "Show the help of a command."),
    "completion": Entry(_LOOK, "shell:completion", "Print the completion script of a shell."),
    "man": Entry(_LOOK, "shell:man", "Write the man pages."),
    "exec": Entry(_ACT, "streams:exec_", "Run a command in a container."),
    "attach": Entry(_ACT, "streams:attach", "Connect with a container's main process."),
    "debug": Entry(_ACT, "streams:debug", "Add a container to a running pod, to debug it."),
    "port-forward": Entry(_ACT, "streams:port_forward", "Forward local ports to a pod."),
    "apply": Entry(_ACT, "changes:apply", "Write manifests into the agent's directory."),
    "plan": Entry(_ACT, "changes:plan", "Say what manifests would change, before apply."),
    "diff": Entry(_ACT, "changes:diff", "Compare manifests with those that are in force."),
    "delete": Entry(_ACT, "changes:delete", "Remove manifests from the agent's directory."),
    "restart": Entry(_ACT, "changes:restart", "Restart the containers of a pod in place."),
    "cp": Entry(_ACT, "streams:cp", "Copy files to or from a container."),
    "install": Entry(_SET_UP, "install:install", "Set this machine up as a node."),
    "uninstall": Entry(_SET_UP, "install:uninstall", "Remove what install has written."),
    "reset": Entry(_SET_UP, "install:reset", "End all pods, and remove what the agent has made."),
    "check": Entry(_SET_UP, "install:check", "Check whether this machine can run pods."),
}

# Words of other tools, and what they are here.
_HABITS: Mapping[str, str] = {
    "ps": "pods",
    "po": "pods",
    "pod": "pods",
    "node": "get node",
    "stats": "top",
    "log": "logs",
    "inspect": "describe",
    "info": "status",
}


# Commands of kubectl that cannot be had here, and what to do instead.
_ELSEWHERE: Mapping[str, str] = {
    "drain": "no other node takes the pods over. On a cluster `kubectl drain NODE` moves them. "
    "Here `delete NAME... --wait` ends pods and removes their manifests, `reset` ends all, "
    "`run --remove-pods-on-exit` ends all with the agent and keeps the manifests, and a shutdown "
    "of the machine ends them in the order of their priorities",
    "cordon": "it is the API server that keeps pods away from a node: `kubectl cordon NODE`. "
    "Without one a node runs what its manifests say",
    "uncordon": "it is the API server that keeps pods away from a node: `kubectl uncordon NODE`. "
    "Without one a node runs what its manifests say",
}


class Commands(click.Group):
    """The group of all commands, each imported when it is called."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command and end the process: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C.

        A failure is one line on stderr that begins with `error:`, as for `run`.
        """
        run: Any = super().main  # click's overloads do not take *args
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        try:
            code = run(*args, standalone_mode=False, **extra)
        except click.UsageError as exc:
            path = exc.ctx.command_path if exc.ctx is not None else "kubelet-trio"
            click.echo(
                f"{_error()} {exc.format_message()}\nRun '{path} --help' for usage.", err=True
            )
            sys.exit(2)
        except click.ClickException as exc:
            click.echo(f"{_error()} {exc.format_message()}", err=True)
            sys.exit(exc.exit_code)
        except click.Abort:
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; an unknown one is refused with the nearest name."""
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        if name in _ELSEWHERE:
            raise click.UsageError(f"there is no command '{name}': {_ELSEWHERE[name]}", ctx)
        import difflib

        near = difflib.get_close_matches(name, [*COMMANDS, *_HABITS], 1)
        hint = f"; did you mean '{_HABITS.get(near[0], near[0])}'?" if near else ""
        raise click.UsageError(f"unknown command '{name}'{hint}", ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of that name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.place.partition(":")
        command = getattr(import_module(f"kubelet_trio.cli.commands.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, without importing any."""
        width = max(map(len, COMMANDS))
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [
                        (name.ljust(width), entry.summary)
                        for name, entry in COMMANDS.items()
                        if entry.section == section
                    ]
                )


def _error() -> str:
    return paint("bad", "error:") if is_wanted("auto", sys.stderr) else "error:"


def _print_version(context: click.Context, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        from kubelet_trio import __version__

        click.echo(f"kubelet-trio {__version__}")
        context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--root-dir",
    default=None,
    metavar="DIR",
    help=f"Root directory of the agent to connect to, or to run.  [default: {ROOTS_ROOT}, for "
    "other users than root $XDG_STATE_HOME/kubelet-trio]",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=lambda context, _, is_wanted: _print_version(context, is_wanted),
    help="Show the version.",
)
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Colour words such as Running and Warning; auto: on a terminal.",
)
@click.pass_context
def cli(context: click.Context, root_dir: str | None, color: str) -> None:
    """A Kubernetes node agent, and commands to inspect it."""
    context.obj = root_dir
    context.color = is_wanted(color, sys.stdout)
