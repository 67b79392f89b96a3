"""What agent and shims agree on: files in a container's directory, and frames on its socket.

A frame is a kind (one byte), a length (four), and the content. Requests and answers are
JSON; what comes of a terminal or a pipe goes as it is. After a request a client sends
nothing until it has the answer.
"""

from __future__ import annotations

import struct

SPEC = "spec.json"  # what to run: written by the agent, read at every start of a process
SHIM = "shim.json"  # who watches and what runs: written by the shim at the start
EXIT = "exit.json"  # how it ended: written once, last
CONTROL = "control"

REQUEST, ANSWER = b"q", b"a"
STDOUT, STDERR = b"o", b"e"
STDIN, STDIN_END, RESIZE = b"i", b"c", b"r"
EXITED = b"x"

NAME = b"kt-shim"  # as process lists show it

HEADER = struct.Struct(">cI")
START_ERROR = 128  # the exit code of what could not be started, as containerd has it
