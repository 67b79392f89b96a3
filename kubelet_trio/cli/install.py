"""What `check`, `install`, `uninstall` and `reset` print."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from kubelet_trio.cli.local import default_root
from kubelet_trio.install import (
    ContainerdConfigError,
    Facts,
    Finding,
    InstallError,
    Options,
    Plan,
    PodCidrError,
    Tree,
    after_install,
    after_uninstall,
    agent_pid,
    as_json,
    ask_pods,
    before_uninstall,
    carry_out,
    gather,
    has_systemd,
    load_wanted,
    plan_reset,
    problems,
    run_checks,
    run_commands,
    run_end,
    set_sysctls,
    stop_agent,
    unit_text,
)
from kubelet_trio.model import in_user_namespace

_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


def check(
    *,
    config: str,
    endpoint: str,
    root: str,
    ignore: Sequence[str],
    output: str | None,
    root_dir: str = "",
) -> None:
    """Print the findings; exit with 1 if there is a problem."""
    flags = config_flags(config, endpoint)
    if not root_dir and os.geteuid() != 0:
        root_dir = default_root()
    flags += [f"--root-dir={Path(root_dir).absolute()}"] if root_dir else []
    wanted = load_wanted(flags, Path(root), systemd=has_systemd())
    findings = run_checks(gather(wanted, Path(root)))
    if output == "json":
        print(json.dumps({"checks": as_json(findings)}, indent=2))
    elif output == "yaml":
        import yaml

        print(yaml.safe_dump({"checks": as_json(findings)}, sort_keys=False), end="")
    else:
        print_findings(findings)
    if found := problems(findings, ignore):
        names = ", ".join(finding.check for finding in found)
        raise click.ClickException(f"this machine cannot run pods yet: {names}")


def config_flags(config: str, endpoint: str) -> list[str]:
    """Return the flags of `run` that name the configuration."""
    flags = [f"--config={Path(config).absolute()}"] if config else []
    return flags + ([f"--container-runtime-endpoint={endpoint}"] if endpoint else [])


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a line for each finding, and its cure below it."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        mark = _MARKS[finding.result]
        sys.stdout.write(f"{mark:<8}{finding.check:<{width}}  {finding.message}\n")
        if finding.cure and finding.result != "ok":
            how = f"{finding.cure} does it" if finding.by_install else finding.cure
            sys.stdout.write(f"{'':<{8 + width}}  -> {how}\n")


def install(
    *,
    config: str,
    endpoint: str,
    root: str,
    ignore: Sequence[str],
    pod_cidr: str | None,
    pause_image: str | None,
    program: str | None,
    yes: bool,
    dry_run: bool,
    now: bool,
) -> None:
    """Show the plan, and carry it out once it is agreed to."""
    tree = Tree(Path(root).absolute())
    is_here = tree.root == Path("/")
    if is_here:
        _refuse_namespace("install")
    # In an image systemd will be process 1, whatever runs here.
    systemd = has_systemd() if is_here else True
    wanted = load_wanted(config_flags(config, endpoint), tree.root, systemd=systemd)
    facts = replace(gather(wanted, tree.root), systemd=systemd)
    findings = run_checks(facts)
    if is_here:
        _refuse(findings, ignore)
    try:
        last = tree.journal().options
        options = Options(
            pod_cidr or last.pod_cidr,
            last.pause_image if pause_image is None else pause_image,
            program or _own_program(),
        )
        plan = tree.plan(facts, options)
        _print_plan(plan, facts, now=now, is_here=is_here)
        if dry_run or not _agreed(yes, nothing=plan.is_empty):
            return
        tree.apply(plan)
    except (InstallError, PodCidrError, ContainerdConfigError, OSError) as exc:
        raise click.ClickException(f"{exc}") from exc
    written = [change.file.path for change in plan.changes if change.writes]
    if not is_here:
        sys.stdout.write(f"Installed below {tree.root}.\n")
        return
    _run(after_install(facts, written, now=now))
    for refused in set_sysctls():
        sys.stderr.write(f"note: {refused}\n")
    _print_next(facts, written, now=now)


def _refuse_namespace(command: str) -> None:
    """End in a user namespace: its /etc is not the machine's, or may not be written."""
    if in_user_namespace():
        raise click.ClickException(
            f"{command} is for the root of a machine, and this is a user namespace: "
            "see docs/rootless.md"
        )


def _refuse(findings: Sequence[Finding], ignore: Sequence[str]) -> None:
    """End if there is a problem that an installation does not cure."""
    left = [finding for finding in problems(findings, ignore) if not finding.by_install]
    if not left:
        return
    print_findings(left)
    names = ", ".join(finding.check for finding in left)
    raise click.ClickException(f"cure these first, or go on with --ignore NAME: {names}")


def _own_program() -> str:
    found = Path(sys.argv[0]).absolute()
    return str(found) if found.name == "kubelet-trio" and found.exists() else Options().program


_VERBS = {"create": "create", "change": "change", "unchanged": "-", "keep": "keep"}


def _print_plan(plan: Plan, facts: Facts, *, now: bool, is_here: bool) -> None:
    for directory in plan.directories:
        sys.stdout.write(f"{'make':<8}{directory}/\n")
    for change in plan.changes:
        note = (
            "; it is not of an installation, or was changed since"
            if change.action == "keep"
            else ""
        )
        sys.stdout.write(f"{_VERBS[change.action]:<8}{change.file.path}: {change.file.why}{note}\n")
    written = [change.file.path for change in plan.changes if change.writes]
    for command in after_install(facts, written, now=now) if is_here else ():
        sys.stdout.write(f"{'run':<8}{' '.join(command)}\n")
    sys.stdout.flush()


def _agreed(yes: bool, *, nothing: bool) -> bool:
    """Return whether to go on: by --yes, or by an answer on a terminal."""
    if yes or nothing:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: say --yes, or --dry-run")
    if click.confirm("Go on?"):
        return True
    raise click.ClickException("nothing was changed")


def _run(commands: Sequence[list[str]]) -> None:
    failed = [(c, error) for c, error in run_commands(commands) if error]
    for command, error in failed:
        # Without the module pods run; without the service nothing does.
        if command[0] == "modprobe":
            sys.stderr.write(f"note: {' '.join(command)}: {error}\n")
    fatal = [f"{' '.join(c)}: {error}" for c, error in failed if c[0] != "modprobe"]
    if fatal:
        raise click.ClickException("; ".join(fatal))


def _print_next(facts: Facts, written: Sequence[str], *, now: bool) -> None:
    if facts.systemd:
        how = "The agent runs" if now else "Start the agent with `systemctl start kubelet-trio`"
        sys.stdout.write(f"{how}. Manifests go to /etc/kubernetes/manifests.\n")
        return
    if any(path.startswith("/etc/containerd/") for path in written):
        sys.stdout.write("Restart containerd: its configuration has changed.\n")
    sys.stdout.write("Then: kubelet-trio run --config=/var/lib/kubelet/config.yaml\n")


def uninstall(*, root: str, yes: bool, dry_run: bool, with_reset: bool) -> None:
    """Remove what `install` has written, and nothing else."""
    tree = Tree(Path(root).absolute())
    is_here = tree.root == Path("/")
    if is_here:
        _refuse_namespace("uninstall")
    systemd = is_here and has_systemd()
    if with_reset and is_here:
        reset(config="", endpoint="", root_dir="", grace=30, force=True, yes=yes, dry_run=dry_run)
    try:
        undos = tree.plan_undo()
        if not undos and not tree.journal().directories:
            sys.stdout.write("Nothing is installed.\n")
            return
        for command in before_uninstall(systemd=systemd):
            sys.stdout.write(f"{'run':<8}{' '.join(command)}\n")
        for undo in undos:
            note = ": it was changed since it was installed" if undo.action == "leave" else ""
            sys.stdout.write(f"{undo.action:<8}{undo.path}{note}\n")
        sys.stdout.flush()
        if dry_run or not _agreed(yes, nothing=False):
            return
        _run(before_uninstall(systemd=systemd))
        tree.undo(undos)
    except (InstallError, OSError) as exc:
        raise click.ClickException(f"{exc}") from exc
    undone = [undo.path for undo in undos if undo.action in ("remove", "restore")]
    _run(after_uninstall(undone, systemd=systemd))
    if is_here and not with_reset:
        sys.stdout.write("The pods run on; `kubelet-trio reset` ends and removes them.\n")


def print_unit(program: str | None) -> None:
    """Print the systemd unit."""
    sys.stdout.write(unit_text(program or Options().program))


def reset(
    *,
    config: str,
    endpoint: str,
    root_dir: str,
    grace: int,
    force: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Show what an agent has left on this machine, and remove it once that is agreed to."""
    from kubelet_trio.cgroups import cgroup_host
    from kubelet_trio.cri import RuntimeCallError

    systemd = has_systemd()
    flags = config_flags(config, endpoint)
    flags += [f"--root-dir={Path(root_dir).absolute()}"] if root_dir else []
    wanted = load_wanted(flags, Path("/"), systemd=systemd)
    if wanted.problems:
        raise click.ClickException("; ".join(wanted.problems))
    if agent_pid(Path(wanted.root_dir)) and not force:
        raise click.ClickException(
            f"an agent runs on {wanted.root_dir}: stop it first, or let --force do it"
        )
    try:
        plan = plan_reset(wanted, ask_pods(wanted, grace), cgroup_host())
        for verb, what in plan.lines():
            sys.stdout.write(f"{verb:<8}{what}\n")
        sys.stdout.flush()
        if dry_run or not _agreed(yes, nothing=False):
            return
        if error := stop_agent(wanted, systemd=systemd):
            raise click.ClickException(error)
        # The agent may have started or ended pods since.
        left = ask_pods(wanted, grace)
        problems_left = run_end(wanted, left)
        if not problems_left:
            plan = plan_reset(wanted, [*plan.pods, *left], cgroup_host())
            problems_left = carry_out(wanted, plan, systemd=systemd)
    except RuntimeCallError as exc:
        raise click.ClickException(f"{wanted.endpoint}: {exc}") from exc
    except OSError as exc:
        raise click.ClickException(str(exc)) from exc
    if problems_left:
        raise click.ClickException("; ".join(problems_left))
    sys.stdout.write("Nothing of the agent is left; images, manifests and configuration are.\n")
