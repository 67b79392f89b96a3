"""The protocol of agent and shim: files in a container's directory, frames on its socket.

A frame is a kind (one byte), a length (four bytes), and the content. Requests and answers are
JSON, input and output are raw bytes. After a request a client sends nothing until the answer.
"""

from __future__ import annotations

import struct

SPEC = "spec.json"  # how to start processes: written by the agent
SHIM = "shim.json"  # PIDs of the shim and the main process: written by the shim at the start
EXIT = "exit.json"  # the exit of the main process: written by the shim, once, last
CONTROL = "control"

REQUEST, ANSWER = b"q", b"a"
STDOUT, STDERR = b"o", b"e"
STDIN, STDIN_END, RESIZE = b"i", b"c", b"r"
EXITED = b"x"

NAME = b"kt-shim"  # as process lists show it

HEADER = struct.Struct(">cI")
START_ERROR = 128  # containerd's exit code of a container that could not be started
