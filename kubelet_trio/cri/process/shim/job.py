"""Starting a process with a container's settings, and its input and output."""

from __future__ import annotations

import errno
import os
import select
import signal
import struct
import sys

from .files import write_file
from .processes import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl
from .protocol import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:  # the shim is one program and pays for every import
    from collections.abc import Iterator, Mapping
    from typing import Any, NoReturn

BLOCK = 1 << 16


class StartError(Exception):
    """The process could not be started. The text goes into the container's status."""


class Job:
    """A started process, with our ends of its stdin, stdout and stderr."""

    def __init__(
        self, pid: int, outputs: dict[int, bytes], stdin: int | None, tty: int | None
    ) -> None:
        self.pid = pid
        self.outputs = outputs  # descriptor to the stream it carries
        self.stdin = stdin
        self.tty = tty
        self.pending = b""  # input that the process has not read yet
        self.input_ends = False

    def register(self, poll: select.poll) -> None:
        """Register output, and stdin if input is pending, with a poll."""
        wanted = dict.fromkeys(self.outputs, select.POLLIN)
        if self.pending and self.stdin is not None:
            wanted[self.stdin] = wanted.get(self.stdin, 0) | select.POLLOUT
        for fd, events in wanted.items():
            poll.register(fd, events)

    def feed(self, content: bytes) -> None:
        """Queue input for the process."""
        if self.stdin is not None and not self.input_ends:
            self.pending += content
            self.flush()

    def end_input(self) -> None:
        """Close stdin once the pending input is written."""
        if self.tty is not None:
            self.feed(b"\x04")  # ^D: a terminal has one descriptor for both directions
        else:
            self.input_ends = True
            self.flush()

    def flush(self) -> None:
        if self.stdin is None:
            return
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.stdin, self.pending) :]
        except BlockingIOError:
            return
        except OSError:
            self.pending, self.input_ends = b"", True  # EPIPE: no process has its stdin open
        if self.input_ends:
            if self.stdin != self.tty:
                os.close(self.stdin)
            self.stdin = None

    def resize(self, rows: int, columns: int) -> None:
        if self.tty is not None:
            import fcntl
            import termios

            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self.tty, termios.TIOCSWINSZ, size)

    def read(self, fd: int) -> bytes:
        """Return available output; b"" at its end, which closes it. Raises BlockingIOError."""
        try:
            content = os.read(fd, BLOCK)
        except BlockingIOError:
            raise
        except OSError:  # EIO: no process has the terminal open any more
            content = b""
        if not content:
            del self.outputs[fd]
            if fd != self.tty:
                os.close(fd)
        return content

    def drain(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the output that is available, without waiting for more."""
        for fd, stream in tuple(self.outputs.items()):
            try:
                while content := self.read(fd):
                    yield stream, content
            except BlockingIOError:
                pass


def start_job(spec: Mapping[str, Any], *, argv: list[str], tty: bool, stdin: bool) -> Job:
    """Start a process with the settings in `spec`. Raises `StartError` and OSError."""
    uid = -1 if spec["uid"] is None else spec["uid"]
    theirs: list[int]
    if tty:
        ours, slave = os.openpty()
        theirs, outputs = [slave] * 3, {ours: STDOUT}
        stdin_fd, tty_fd = (ours if stdin else None), ours
        os.fchown(slave, uid, -1)
    else:
        (out, theirs_out), (err, theirs_err) = os.pipe(), os.pipe()
        outputs, tty_fd = {out: STDOUT, err: STDERR}, None
        theirs_in, stdin_fd = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), None)
        theirs = [theirs_in, theirs_out, theirs_err]
        for fd in theirs[0 if stdin else 1 :]:
            os.fchown(fd, uid, -1)  # else another user could not open its own /dev/stdout
    failure, theirs_failure = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(spec, argv, theirs, tty, theirs_failure)
    for fd in {*theirs, theirs_failure}:
        os.close(fd)
    for fd in (*outputs, *(() if stdin_fd is None else (stdin_fd,))):
        os.set_blocking(fd, False)
    # The write end is closed by a successful execve (O_CLOEXEC), so this read ends then.
    with open(failure, "rb") as file:
        error = file.read()
    if error:
        os.waitpid(pid, 0)
        for fd in {*outputs, *(() if stdin_fd is None else (stdin_fd,))}:
            os.close(fd)
        raise StartError(error.decode(errors="replace"))
    return Job(pid, outputs, stdin_fd, tty_fd)


def _become(
    spec: Mapping[str, Any], argv: list[str], stdio: list[int], tty: bool, failure: int
) -> NoReturn:
    """In the new process: execute the container's program, or write the error to `failure`."""
    try:
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        if tty:
            import fcntl
            import termios

            fcntl.ioctl(stdio[0], termios.TIOCSCTTY, 0)
        for target, fd in enumerate(stdio):
            os.dup2(fd, target)
        _apply_limits(spec)  # before the user is switched: joining a cgroup needs our rights
        if spec["uid"] is not None:
            os.setgroups(spec["groups"])
            os.setresgid(spec["gid"], spec["gid"], spec["gid"])
            os.setresuid(spec["uid"], spec["uid"], spec["uid"])
        # After the user is switched: a path that the pod chose is not resolved as root.
        _enter(spec["cwd"])
        # Without its shim a container could neither be stopped nor logged: it dies with the shim.
        # After the user is switched, since setresuid clears this setting, prctl(2).
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if spec["no_new_privs"]:
            prctl(PR_SET_NO_NEW_PRIVS, 1)
        os.umask(0o022)
        _execute(argv, spec["env"])
    except StartError as exc:
        os.write(failure, str(exc).encode())
    finally:  # in every case: the forked process must not return into the shim's code
        if (error := sys.exc_info()[1]) is not None:
            os.write(failure, f"starting {argv[0]!r}: {error!r}".encode())
        os._exit(127)


def _apply_limits(spec: Mapping[str, Any]) -> None:
    """Join the container's cgroups, and set the OOM score and rlimits of this process."""
    for path in spec["cgroup_procs"]:
        write_file(path, "0")  # 0: the writing process, cgroups(7)
    write_file("/proc/self/oom_score_adj", str(spec["oom_score_adj"]))
    if spec["rlimits"]:
        import resource

        for number, limits in spec["rlimits"].items():
            resource.setrlimit(int(number), tuple(limits))


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as exc:
        raise StartError(f'working directory "{directory}": {exc.strerror}') from exc


def _execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    name = argv[0]
    if "/" in name:
        candidates = [name]
    else:
        places = env.get("PATH", os.defpath).split(":")
        candidates = [f"{place or '.'}/{name}" for place in places]
    # As execvp(3): go on with the next directory, but remember an error other than "not found".
    reason = "executable file not found in $PATH"
    for candidate in candidates:
        try:
            os.execve(candidate, argv, env)
        except OSError as exc:
            if "/" in name or exc.errno not in (errno.ENOENT, errno.ENOTDIR):
                reason = os.strerror(exc.errno or 0).lower()
    raise StartError(f'exec: "{name}": {reason}')
