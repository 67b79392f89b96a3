"""What commands share: the agent that they ask, and options of the same name everywhere."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kubelet_trio.cli.local import default_root

if TYPE_CHECKING:
    from kubelet_trio.cli.client import AgentClient
    from kubelet_trio.cli.listing import Shown
    from kubelet_trio.cli.output import Output
    from kubelet_trio.cli.selectors import Selector

F = TypeVar("F", bound=Callable[..., Any])

_FORMS = click.Choice(["json", "yaml"])


def reads(command: F) -> F:
    """Pass the agent's client to a command, and print its errors."""

    def call(root_dir: str | None, color: str | None, **arguments: Any) -> None:
        from kubelet_trio.cli.client import AgentClient, ClientError
        from kubelet_trio.cli.colour import is_wanted

        context = click.get_current_context()
        outer = context.obj
        if color is not None:
            context.color = is_wanted(color, sys.stdout)
        try:
            command(AgentClient(root_dir or outer or default_root()), **arguments)
        except ClientError as exc:
            raise click.ClickException(str(exc)) from exc
        except KeyboardInterrupt:
            sys.exit(130)  # the usual end of a watch: no traceback

    # click takes name and help from the function, and decorators below this one left their
    # options on the command.
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    coloured = click.option("--color", type=click.Choice(["auto", "always", "never"]), hidden=True)
    rooted = click.option(
        "--root-dir", default=None, metavar="DIR", help="Root directory of the agent."
    )
    return rooted(coloured(call))  # type: ignore[return-value]


class _OutputType(click.ParamType):  # type: ignore[type-arg]
    """A value of `-o` of a command that lists objects."""

    name = "form"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Output:
        from kubelet_trio.cli.output import Output, parse_output

        if isinstance(value, Output):
            return value
        try:
            return parse_output(str(value))
        except (ValueError, OSError) as exc:
            self.fail(str(exc), param, ctx)


def listing(*, watch: bool = True, labels: bool = True) -> Callable[[F], F]:
    """Give a command the options of kubectl's lists, and pass them as one `Shown`.

    Args:
        watch: whether it has `-w`.
        labels: whether its objects have labels.
    """
    options = [
        click.option(
            "-o",
            "--output",
            type=_OutputType(),
            default=None,
            metavar="FORM",
            help="wide, name, json, yaml, jsonpath=..., or custom-columns=NAME:.field,...",
        ),
        click.option("--no-headers", is_flag=True, help="Without the line of headers."),
        click.option("--sort-by", default="", metavar="FIELD", help="E.g. .metadata.name."),
        click.option(
            "--field-selector", default="", metavar="FIELDS", help="E.g. status.phase=Running."
        ),
    ]
    if labels:
        options += [
            click.option(
                "-l",
                "--selector",
                default="",
                metavar="LABELS",
                help="Only with these labels: a=b, a!=b, a in (b,c), a, !a.",
            ),
            click.option("--show-labels", is_flag=True, help="With a column of all labels."),
            click.option(
                "-L", "--label-columns", default="", metavar="KEYS", help="With these labels."
            ),
        ]
    if watch:
        options.append(click.option("-w", "--watch", is_flag=True, help="Then print every change."))

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def call(agent: AgentClient, **arguments: Any) -> None:
            command(agent, shown=_shown(arguments), **arguments)

        decorated: Any = call
        for option in (all_namespaces_option, namespace_option, *reversed(options)):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def _shown(arguments: dict[str, Any]) -> Shown:
    """Take the options of `listing` out of a command's arguments."""
    from kubelet_trio.cli.listing import Shown
    from kubelet_trio.cli.output import Output

    labels = arguments.pop("label_columns", "")
    return Shown(
        output=arguments.pop("output") or Output(),
        namespace=one_namespace(arguments),
        labels=parse_selector(arguments.pop("selector", "")),
        fields=_parsed("--field-selector", "parse_fields", arguments.pop("field_selector")),
        headers=not arguments.pop("no_headers"),
        sort_by=arguments.pop("sort_by"),
        show_labels=arguments.pop("show_labels", False),
        label_columns=tuple(key.strip() for key in labels.split(",") if key.strip()),
    )


def one_namespace(arguments: dict[str, Any]) -> str:
    """Take `-n` and `-A` out of a command's arguments; return the namespace, empty for all."""
    every, namespace = arguments.pop("all_namespaces"), arguments.pop("namespace")
    return "" if every else str(namespace)


def parse_selector(text: str) -> Selector | None:
    """Return the test of `-l`; None if it is not given. Raises `click.UsageError`."""
    return _parsed("-l", "parse_labels", text) if text else None


def _parsed(option: str, function: str, text: str) -> Any:
    from kubelet_trio.cli import selectors

    try:
        return getattr(selectors, function)(text)
    except ValueError as exc:
        raise click.UsageError(f"{option}: {exc}") from exc


# kubectl needs it; here all namespaces are the default, so it only wins over `-n`.
all_namespaces_option = click.option(
    "-A", "--all-namespaces", is_flag=True, help="All namespaces, which is the default."
)


def completed_by(name: str) -> Callable[[click.Context, click.Parameter, str], Any]:
    """Return a `shell_complete`: a function of `cli.completion`, imported at the first TAB."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        from kubelet_trio.cli import completion

        return getattr(completion, name)(ctx, param, incomplete)

    return complete


namespace_option = click.option(
    "-n",
    "--namespace",
    default="",
    help="Only this namespace.",
    shell_complete=completed_by("namespaces"),
)
output_option = click.option("-o", "--output", type=_FORMS, default=None, help="Output format.")
