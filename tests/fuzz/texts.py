"""Targets: texts of lines and words, from the kernel, containers, authors and command lines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from kubelet_trio.cgroups.detect import parse_cgroup_mounts
from kubelet_trio.cgroups.names import cgroup_path, parse_cgroup, parse_existing
from kubelet_trio.cli.ages import parse_since
from kubelet_trio.cli.tables import printable
from kubelet_trio.config import ConfigError
from kubelet_trio.config.flags import parse_flags
from kubelet_trio.config.host import parse_swaps
from kubelet_trio.containers import parse_env_file
from kubelet_trio.containers.env.expansion import expand_from
from kubelet_trio.containers.logs.cri_log import LogOptions, parse_line, read_log, tail_offset
from kubelet_trio.containers.node import parse_resolv_conf
from kubelet_trio.credentials.matching import Login, lookup, matches, repository
from kubelet_trio.credentials.provider_config import cache_duration
from kubelet_trio.cri.process.identity import RefusedError
from kubelet_trio.cri.process.launch import parse_rlimits
from kubelet_trio.durations import format_duration, parse_duration
from kubelet_trio.grpc._metadata import (
    decode_message,
    decode_metadata,
    decode_timeout,
    encode_message,
)
from kubelet_trio.managers import (
    ManagerSettings,
    ManagerStateError,
    TopologyError,
    load_managers,
    read_machine,
)
from kubelet_trio.managers.loading import read_checkpoint
from kubelet_trio.model.cpus import parse_cpus
from kubelet_trio.model.quantity import canonical_quantity, parse_quantity
from kubelet_trio.node.capacity import threshold_amount
from kubelet_trio.pods.images.request import reference_problem
from kubelet_trio.pods.records.userns import UserNamespaceError, parse_getsubids
from kubelet_trio.pressure.oom import parse_kill
from kubelet_trio.pressure.thresholds import parse_thresholds
from kubelet_trio.server import HttpError
from kubelet_trio.server.http.types import parse_decimal
from kubelet_trio.server.logs.container import read_query
from kubelet_trio.server.logs.node_query import check_log_query, journal_arguments, read_log_query
from kubelet_trio.server.sockets import find_holder
from kubelet_trio.stats.cgroup_parse import (
    FILES_V1,
    FILES_V2,
    MORE_FILES_V1,
    MORE_FILES_V2,
    parse_v1,
    parse_v2,
)
from kubelet_trio.stats.proc_parse import (
    parse_boot_time,
    parse_meminfo,
    parse_net_dev,
    parse_open_files_limit,
    parse_own_cgroup,
    parse_process_count,
)
from kubelet_trio.streaming.channels import SizeReader
from kubelet_trio.streaming.websocket import handshake, offered_protocols
from kubelet_trio.volumes.mountinfo import parse_mountinfo
from tests.fuzz.mutate import texts
from tests.fuzz.target import Target

_MOUNTS = (
    b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    b"29 22 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n"
    b"30 29 0:27 / /sys/fs/cgroup/memory rw master:3 - cgroup cgroup rw,memory\n"
    b"31 29 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
    b"40 22 0:50 /a\\040b /mnt/with\\134back rw - nfs4 host:/x rw,vers=4.2\n"
)
_CGROUP_FILES = sorted(
    {
        *FILES_V2,
        *MORE_FILES_V2,
        *(name for names in (*FILES_V1.values(), *MORE_FILES_V1.values()) for name in names),
    }
)
_CGROUP = {
    "cpu.stat": "usage_usec 5\nuser_usec 3\nnr_periods 1\nthrottled_time 2\n",
    "memory.stat": "anon 1\nfile 2\ntotal_rss 4\npgfault 9\n",
    "cpu.max": "max 100000\n",
    "memory.max": "9223372036854771712\n",
    "cpu.pressure": "some avg10=0.00 avg60=1.50 avg300=0.00 total=7\n",
    "io.stat": "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n",
    "cgroup.procs": "1\n0\n23\n",
    "blkio.throttle.io_service_bytes": "8:0 Read 1\n8:0 Write 2\nTotal 3\n",
    "pids.max": "max\n",
}
_TCP = (
    b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout"
    b" inode\n   0: 0100007F:2808 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0  "
    b"      0 12345 1 0000000000000000 100 0 0 10 0\n"
)


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


def _lenient(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """For files that are read with what is no UTF-8 kept as surrogates."""
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


def _cgroup(data: bytes) -> object:
    parts = data.split(b"\0")
    names = (name.decode("utf-8", "replace") for name in parts[::2])
    files = dict(zip(names, parts[1::2], strict=False))
    return parse_v1(files, 1.0), parse_v2(files, 1.0)


def _proc(text: str) -> object:
    return (
        parse_meminfo(text),
        parse_net_dev(text),
        parse_process_count(text),
        parse_boot_time(text),
        parse_open_files_limit(text),
        parse_own_cgroup(text, 1),
        parse_own_cgroup(text, 2),
        parse_swaps(text),
    )


def _quantity(text: str) -> object:
    nano = parse_quantity(text)
    written = canonical_quantity(text)
    assert parse_quantity(written) == nano
    assert canonical_quantity(written) == written
    return written


def _duration(text: str) -> object:
    seconds = parse_duration(text)
    again = parse_duration(format_duration(seconds))
    assert abs(again - seconds) <= 1e-9 * max(1, abs(seconds))
    return seconds


def _image(text: str) -> object:
    name = repository(text)
    logins = {text: Login(), "*.example": Login("u")}
    return reference_problem(text), name, matches(text, name), lookup([[logins]], name)


def _log(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "0.log")
        path.write_bytes(data)
        with path.open("rb", buffering=0) as file:
            for lines in (0, 1, 3):
                assert 0 <= tail_offset(file, lines) <= len(data)
        wanted = (LogOptions(), LogOptions(tail=2, since=1.0, limit=50, timestamps=True))
        told = [b"".join(read_log(path, options)) for options in wanted]
    assert len(told[0]) <= len(data) + 1
    assert len(told[1]) <= 50
    return [parse_line(line) for line in data.split(b"\n")]


def _holder(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory, "net", "tcp")
        table.parent.mkdir()
        table.write_bytes(data)
        return str(find_holder("127.0.0.1", 10248, Path(directory)))


def _state_file(data: bytes) -> object:
    """Start without a policy beside a file that an agent with one may have left."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "cpu_manager_state")
        path.write_bytes(data)
        assert read_checkpoint(path) == data
        return load_managers(ManagerSettings(), Path(directory))


def _machine(data: bytes) -> object:
    """Read a machine of which each piece of the data is one file."""
    cpu, node = "sys/devices/system/cpu", "sys/devices/system/node/node0"
    names = (
        f"{cpu}/online",
        f"{cpu}/isolated",
        f"{cpu}/cpu0/topology/core_id",
        f"{cpu}/cpu0/topology/physical_package_id",
        f"{cpu}/cpu0/cache/index3/shared_cpu_map",
        f"{cpu}/cpu0/cache/index3/size",
        f"{node}/cpulist",
        f"{node}/meminfo",
        f"{node}/distance",
        f"{node}/hugepages/hugepages-2048kB/nr_hugepages",
        "proc/cpuinfo",
    )
    with tempfile.TemporaryDirectory() as directory:
        for name, content in zip(names, data.split(b"|"), strict=False):
            path = Path(directory, name)
            if content:  # else the file is missing
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return read_machine(Path(directory))


def _log_query(text: str) -> object:
    arguments = tuple(parse_qsl(text, keep_blank_values=True))
    try:
        query = read_query(arguments, 1e9, split_streams="split" in text)
    except HttpError:
        query = None
    asked = read_log_query(arguments)
    if asked is None:
        return query
    if query is not None and "query" not in dict(arguments):
        return query  # the question for a container's log
    check_log_query(asked)
    written = journal_arguments(asked, asked.services)
    assert all(word.startswith("--") for word in written)  # none is an option of the asker's
    return query, written


def _sizes(data: bytes) -> object:
    reader = SizeReader()
    found = [reader.feed(data[at : at + 7]) for at in range(0, len(data), 7)]
    sizes = [size for size in (*found, SizeReader().feed(data)) if size is not None]
    assert all(0 <= number < 1 << 16 for size in sizes for number in size)
    return sizes


def _terminal(text: str) -> object:
    shown = printable(text)
    assert not [c for c in shown if not c.isprintable() and c not in "\t\n"]
    return shown


def _metadata(data: bytes) -> object:
    message = decode_message(data)
    assert decode_message(encode_message(message)) == message
    pairs = [tuple(line.partition(b":")[::2]) for line in data.split(b"\n")]
    return decode_metadata(pairs), decode_timeout(data)  # type: ignore[arg-type]


def _handshake(text: str) -> object:
    lines = (line.partition(":") for line in text.split("\n"))
    headers = {name.strip().lower(): value.strip() for name, _, value in lines}
    return handshake(headers, "v4.channel.k8s.io"), offered_protocols(headers)


def _names(text: str) -> object:
    name = parse_cgroup(text)
    path = cgroup_path(name, "cgroupfs")
    assert parse_cgroup(path) == name
    return parse_existing(text, "systemd")


def _threshold(text: str) -> object:
    found = parse_thresholds({"memory.available": text}, min_reclaim={"memory.available": text})
    # What the configuration takes, the node can count with.
    return found, threshold_amount(text, 10**18) if found else 0


def _of(
    name: str,
    run: Callable[[bytes], object],
    examples: Sequence[bytes],
    *errors: type[Exception],
    tokens: Sequence[bytes] = (),
    per_byte: int = 16,
    most: int = 64 * 1024,
) -> Target:
    return Target(name, run, examples, texts(examples, *tokens), errors, per_byte, most)


TARGETS = [
    _of("mountinfo", _lenient(parse_mountinfo), [_MOUNTS], tokens=[b" - ", b"\\777"]),
    _of("mountinfo of cgroups", _lenient(parse_cgroup_mounts), [_MOUNTS], tokens=[b" - ", b","]),
    _of(
        "cgroup files",
        _cgroup,
        ["\0".join(f"{k}\0{v}" for k, v in _CGROUP.items()).encode()],
        tokens=[f"\0{name}\0".encode() for name in _CGROUP_FILES],
    ),
    _of(
        "proc files",
        _text(_proc),
        [
            b"MemTotal:       16311004 kB\nHugePages_Total:       0\n",
            b"  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n    lo: 1 2 3\n",
            b"0.20 0.18 0.12 1/80 11206\n",
            b"cpu  1 2\nbtime 1700000000\n",
            b"Max open files            1024                 4096                 files\n",
            b"12:memory:/kubepods/x\n0::/user.slice\n",
            b"Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 1 0 -2\n",
        ],
        tokens=[b"btime ", b"Max open files", b"Max open files \n", b"btime\n", b" kB"],
    ),
    _of("listening sockets of proc", _holder, [_TCP], tokens=[b"0100007F:", b"0A "]),
    _of(
        "getsubids",
        _text(parse_getsubids),
        [b"0: kubelet 65536 2147483648\n"],
        UserNamespaceError,
    ),
    _of(
        "kernel log",
        _text(parse_kill),
        [
            b"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,"
            b"oom_memcg=/kubepods/p,task_memcg=/kubepods/p/c,task=sh,pid=12,uid=0"
        ],
        tokens=[b"oom-kill:constraint=A,", b",global_oom", b",task_memcg=", b",pid=1"],
    ),
    _of(
        "resolv.conf",
        _text(parse_resolv_conf),
        [b"nameserver 10.0.0.1\nsearch a.example b.example.\noptions ndots:5\n# no\n"],
        ValueError,
    ),
    _of("quantity", _text(_quantity), [b"1.5Gi", b"500m", b"1e3", b"-2"], ValueError),
    _of("duration", _text(_duration), [b"1h30m", b"1.5s", b"-3ms", b"0"], ValueError),
    _of("duration of a provider", _text(cache_duration), [b"1h30m", b"0s"], ValueError),
    _of("duration of the command line", _text(parse_since), [b"1h30m", b"5m"], ValueError),
    _of(
        "image reference",
        _text(_image),
        [
            b"busybox:1.36",
            b"registry.example:5000/a/b@sha256:" + b"0" * 64,
            b"[::1]:5000/a",
            b"localhost/x",
        ],
        tokens=[b"@", b"[", b"]", b"%", b"//", b"https://"],
    ),
    _of(
        "$( expansion",
        _text(lambda t: expand_from(t, {"A": "1"}, 4096)),
        [b"a $(A) $$(B)"],
        ValueError,
    ),
    _of("env file", _text(parse_env_file), [b"# c\nA='1'\nB='x\ny'\n"], tokens=[b"='", b"'\n"]),
    _of(
        "CRI log",
        _log,
        [
            b"2024-01-02T03:04:05.678901234Z stdout F hello\n"
            b"2024-01-02T03:04:05.678901234+02:00 stderr P part\n",
            b'{"log":"hello\\n","stream":"stdout","time":"2024-01-02T03:04:05.678901234Z"}\n',
        ],
        tokens=[b"2024-99-99T99:99:99Z stdout F x\n", b" stdout F ", b"0001-01-01T00:00:00+23:59"],
    ),
    _of(
        "query of logs",
        _text(_log_query),
        [
            b"tailLines=10&follow=true&sinceTime=2024-01-02T03:04:05Z&limitBytes=1",
            b"query=kubelet&boot=0&pattern=a.b&tailLines=5",
            b"stream=Stdout&split=1&timestamps=1",
        ],
        HttpError,
        tokens=[b"&sinceTime=0001-01-01T00:00:00%2B23:59", b"&untilTime=", b"&query=", b"%00"],
    ),
    _of("number of a stranger", _text(parse_decimal), [b"12", b"-9223372036854775808"]),
    _of(
        "flags",
        lambda data: parse_flags(data.decode("utf-8", "surrogateescape").split("\0")),
        [
            b"--max-pods=20\0--v=2\0--feature-gates=A=true\0--reserved-memory\x000:memory=1Gi",
            b"--register-with-taints=a=b:NoSchedule\0--manifest-url-header=a:b",
            b"--system-reserved=cpu=1\0--node-labels=a=b\0--config=/x\0--node-ip=::1",
        ],
        ConfigError,
        tokens=[b"\0--", b"\0-v", b"=", b"\0--v=", b"\0--vmodule=a=1"],
        per_byte=64,
    ),
    _of("threshold", _text(_threshold), [b"10%", b"100Mi"], ValueError, tokens=[b"nan%", b"inf%"]),
    _of("list of CPUs", _text(parse_cpus), [b"0-3,8"], ValueError, tokens=[b"0-999999999"]),
    _of(
        "files of the machine",
        _machine,
        [
            b"0-3\n||0\n|0\n|ff,00000001\n|32768K\n|0-3\n|Node 0 MemTotal: 64 kB\n|10\n|3\n|",
            b"||||||||||processor\t: 0\nphysical id\t: 0\ncore id\t\t: 4\n\nprocessor\t: 1\n",
        ],
        TopologyError,
        tokens=[b"|", b"0-65535", b"MemTotal: ", b"processor\t: 65535\n", b"ffffffff,"],
        # A short list may name every CPU that Linux can count, each of some numbers.
        most=16 << 20,
    ),
    _of(
        "state of a manager that is off",
        _state_file,
        [b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'],
        ManagerStateError,
        tokens=[b'"policyName":', b"{", b"null", b"[", b'"static"'],
    ),
    _of(
        "limits of an annotation",
        _text(parse_rlimits),
        [b"nofile=1024:4096,core=0"],
        RefusedError,
        tokens=[b"unlimited", b"=", b":", b"infinity="],
    ),
    _of("cgroup name", _text(_names), [b"/a/b", b"/system.slice"]),
    _of(
        "terminal sizes",
        _sizes,
        [b'{"Width":80,"Height":24}{"Width":1,"Height":2}'],
        tokens=[b"{", b"}", b"65536", b"1e3", b'"height":'],
    ),
    _of("text on a terminal", _text(_terminal), [b"all is well\n", "naïve".encode()]),
    _of(
        "gRPC metadata",
        _metadata,
        [b"5S", b"100m"],
        ValueError,
        tokens=[b"x-bin:YQ==", b"a:b", b"%41", b"%zz"],
    ),
    _of(
        "WebSocket handshake",
        _text(_handshake),
        [b"sec-websocket-version: 13\nsec-websocket-key: a\nsec-websocket-protocol: a, b"],
        ValueError,
        tokens=[b"sec-websocket-key:", b",,"],
    ),
]
