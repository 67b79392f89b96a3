"""What a pod, a container or a stranger sends takes memory and work in proportion to its size.

"Work" is steps of the interpreter, as in `test_linear`.

Every target of `tests/fuzz` and every parser of `test_linear` is here, by itself: with its good
example again and again, with one long word, and with the shapes below that may be its worst.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial

import pytest

from tests.fuzz import connections
from tests.fuzz.mutate import join_fields
from tests.fuzz.table import TARGETS
from tests.fuzz.target import Target
from tests.grpc.raw_peer import PREFACE, data, headers, settings
from tests.harness.linear import Parser, check_linear
from tests.harness.sizes import Receiver, check_bounded, read
from tests.test_linear import PARSERS

_NAMED = {target.name: target for target in TARGETS}
Make = Callable[[int], bytes]


def _again(example: bytes, n: int) -> bytes:
    return example * max(1, n // max(1, len(example)))


def _json_list(item: str, n: int) -> bytes:
    return ("[" + ",".join([item] * (n // (len(item) + 1))) + "]").encode()


def _json_names(n: int) -> bytes:
    return json.dumps({f"n{number}": number for number in range(n // 12)}).encode()


def _unknown_fields(n: int) -> bytes:
    return join_fields([(1000, 0, 1)]) * (n // 3)


def _fields(number: int, n: int) -> bytes:
    return join_fields([(number, 2, b"")]) * (n // 2)


def _aliases(n: int) -> bytes:
    """A list of lists of lists, each ten times the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, n // 60)]
    return "\n".join(lines).encode()


_DOCUMENTS = [t.name for t in TARGETS if t.examples and t.examples[0][:1] in (b"{", b"[")]
_YAML = [t.name for t in TARGETS if t.name.endswith("in YAML")]
_CRI = [t.name for t in TARGETS if t.name.startswith("CRI answer")]

# Shapes that are the worst that somebody could think of.
WORST: list[tuple[str, str, Make]] = [
    *((name, "a list of numbers", partial(_json_list, "1")) for name in _DOCUMENTS),
    *((name, "a list of objects", partial(_json_list, "{}")) for name in _DOCUMENTS),
    *((name, "many names", _json_names) for name in _DOCUMENTS),
    *((name, "a list of one letter", partial(_again, b"- a\n")) for name in _YAML),
    *((name, "aliases of aliases", _aliases) for name in _YAML),
    *((name, "unknown fields", _unknown_fields) for name in _CRI),
    *((name, "empty messages", partial(_fields, 1)) for name in _CRI),
    ("cgroup files", "processes", lambda n: b"cgroup.procs\0" + b"1\n" * (n // 2)),
    ("env file", "short names", lambda n: b"".join(b"a%d='x'\n" % i for i in range(n // 10))),
    ("HTTP of a stranger", "short headers", lambda n: b"GET / HTTP/1.1" + b"\r\na:" * (n // 4)),
    (
        "HTTP of a stranger",
        "arguments",
        lambda n: b"GET /?%b HTTP/1.1\r\n\r\n" % (b"a&" * (n // 2)),
    ),
    (
        "HTTP of a stranger",
        "chunks of a byte",
        lambda n: (
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"1\r\nx\r\n" * (n // 6)
        ),
    ),
    (
        "HTTP of a container",
        "short headers",
        lambda n: b"HTTP/1.1 200 OK" + b"\r\na:" * (n // 4),
    ),
    (
        "HTTP of a container",
        "informational answers",
        lambda n: b"HTTP/1.1 100 Continue\r\n\r\n" * (n // 25),
    ),
    ("WebSocket", "pings", lambda n: connections._ws(9, b"") * (n // 6)),
    ("WebSocket", "empty messages", lambda n: connections._ws(2, b"") * (n // 6)),
    ("WebSocket", "parts", lambda n: connections._ws(0, b"x", fin=False) * (n // 7)),
    ("SPDY", "pings", lambda n: struct.pack(">HHII", 0x8003, 6, 4, 1) * (n // 12)),
    ("SPDY", "data of nobody", lambda n: struct.pack(">II", 9, 0) * (n // 8)),
    (
        "SPDY",
        "streams",
        lambda n: b"".join(
            struct.pack(">HHIIIH", 0x8003, 1, 10, 2 * i + 1, 0, 0) for i in range(n // 18)
        ),
    ),
    (
        "gRPC of a client",
        "pings",
        lambda n: PREFACE + settings() + (b"\0\0\x08\x06" + b"\0" * 13) * (n // 17),
    ),
    (
        "gRPC of a client",
        "empty data",
        lambda n: PREFACE + settings() + headers({":method": "POST"}) + data(b"") * (n // 9),
    ),
    (
        "gRPC of a client",
        "settings",
        lambda n: PREFACE + b"\0\0\0\x04\0\0\0\0\0" * (n // 9),
    ),
    (
        "gRPC of a server",
        "empty data",
        lambda n: headers({":status": "200"}) + data(b"") * (n // 9),
    ),
]

# What takes more than 64 bytes for each that it is sent, and why that is bounded all the same.
MORE: dict[str, float] = {
    # Files of the node's administrator, read at the start by a loader that keeps nodes and marks.
    "KubeletConfiguration": 256,
    "kubeconfig": 256,
    "credential providers": 512,
    "credential providers in YAML": 256,
    # An empty message is a byte or two, and an object of the runtime's answer: 16 MiB at most come.
    "CRI answer to ImageFsInfo": 128,
    "CRI answer to ListContainerStats": 256,
    "CRI answer to ListImages": 256,
}
# What grows faster than its input, up to a bound of its own.
CAPS = {"environment, chained": 6 << 20}  # 2 MiB of values, and copies


def _of_target(target: Target, shape: str, make: Make) -> Receiver:
    name = f"{target.name}: {shape}"
    return Receiver(name, target.run, make, MORE.get(target.name, 64.0), target.errors or ())


SENT = [
    *(
        _of_target(target, "the same again", partial(_again, target.examples[0]))
        for target in TARGETS
        if target.examples
    ),
    *(_of_target(target, "one long word", partial(_again, b"x")) for target in TARGETS),
    *(_of_target(_NAMED[name], shape, make) for name, shape, make in WORST),
]
RECEIVERS = [
    *SENT,
    *(
        Receiver(f"{p.name} (in steps too)", p.parse, p.make, 512, cap=CAPS.get(p.name, 0))
        for p in PARSERS
    ),
]


@pytest.mark.parametrize("receiver", RECEIVERS, ids=[r.name for r in RECEIVERS])
def test_what_is_held_is_in_proportion_to_what_came(receiver: Receiver) -> None:
    check_bounded(receiver)


@pytest.mark.parametrize("receiver", SENT, ids=[r.name for r in SENT])
def test_twice_of_what_comes_is_twice_the_work(receiver: Receiver) -> None:
    read(receiver, receiver.make(100))  # imports, tables that are made once
    check_linear(Parser(receiver.name, partial(read, receiver), receiver.make))


def test_every_parser_that_is_counted_and_every_target_is_measured() -> None:
    measured = {receiver.name.partition(":")[0] for receiver in SENT}
    names = {receiver.name for receiver in RECEIVERS}
    assert not {target.name for target in TARGETS} - measured
    assert not {f"{parser.name} (in steps too)" for parser in PARSERS} - names


def test_the_helper_finds_what_takes_too_much() -> None:
    with pytest.raises(AssertionError, match="at most"):
        check_bounded(Receiver("copies", lambda d: [bytes(d) + b"x" for _ in range(99)], bytes))


def test_the_helper_finds_what_grows_too_fast() -> None:
    def pairs(given: bytes) -> list[bytes]:
        return [bytes(len(given)) for _ in range(len(given) // 40)]

    with pytest.raises(AssertionError):
        check_bounded(Receiver("pairs", pairs, bytes, per_byte=1e6))
