"""What a container sees: asked of it, and of the recorded data, as one table."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Everything at once: what a line is about can be seen from it.
SCRIPT = """
for d in /cm /sec /e /m /d /p /s /sub /subexpr; do
    [ -d $d ] && find $d -exec stat -c '%A %u:%g %F %n' {} +
done
cat /proc/self/mountinfo
cat /etc/hosts
echo ==
cat /etc/resolv.conf
echo ==
hostname
env
id
"""

_MODE = re.compile(r"([-dl][-rwxstST]{9} \d+:\d+ [a-z ]+) (/.*)")
_MOUNT = re.compile(r"\d+ \d+ \d+:\d+ (\S+) (\S+) (\S+) .*?- (\S+) \S+ (\S+)")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)")
_SHELL = {"_", "SHLVL", "PWD", "OLDPWD"}  # variables of the shell that was asked
# Mounts that a kubelet has no part in: the kernel's, and the runtime's over them.
_NOT_OURS = re.compile(r"/(proc|sys|dev(?!/termination-log|/shm))(/|$)|/$")
_SIZE = re.compile(r"size=\d{7,}k")  # as large as the machine's memory
_HAS_DISK_OPTIONS = {"tmpfs", "shm", "mqueue"}


def facts(lines: Iterable[str], *, host_files: bool) -> dict[str, str]:
    """Return `what` -> value of everything that was seen.

    Args:
        lines: what the script printed.
        host_files: /etc/hosts is the machine's: it is left out.
    """
    found: dict[str, str] = {}
    text: list[str] = []
    for line in lines:
        if mode := _MODE.fullmatch(line):
            found[f"mode {mode[2]}"] = mode[1]
        elif mount := _MOUNT.match(line):
            _note_mount(found, mount)
        elif line.startswith("uid="):
            found["id"] = line
        elif (variable := _VARIABLE.fullmatch(line)) and not line.startswith("search"):
            if variable[1] not in _SHELL:
                found[f"env {variable[1]}"] = variable[2]
        elif line and line != "==":
            text.append(line)
    resolver = [line for line in text if line.startswith(("search", "nameserver", "options"))]
    found["resolv.conf"] = "\n".join(resolver)
    if not host_files:
        found["hosts"] = "\n".join(line for line in text if _is_hosts_line(line))
    return found


def _is_hosts_line(line: str) -> bool:
    return bool(re.match(r"#|[\d.:a-f]+\s|IP\s", line))


def _note_mount(found: dict[str, str], mount: re.Match[str]) -> None:
    root, point, options, kind, details = mount.groups()
    if _NOT_OURS.match(point):
        return
    on_disk = kind not in _HAS_DISK_OPTIONS
    found[f"mount {point}"] = f"{root if on_disk else '/'} {options}" + (
        "" if on_disk else f" {kind} {_SIZE.sub('size=MEMORY', details)}"
    )
