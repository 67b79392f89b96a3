"""The options of the static policy are upstream's, with what excludes what."""

from __future__ import annotations

import pytest

from kubelet_trio.managers import Machine
from kubelet_trio.managers.cpus import CpuConfigError, CpuOptions, check_options, cpu_options
from tests.managers.cpus import machines as m


def test_options_that_are_missing_are_off() -> None:
    assert cpu_options({}) == CpuOptions()
    assert cpu_options({"full-pcpus-only": True, "align-by-socket": False}) == CpuOptions(
        full_cores=True
    )


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (("full-pcpus-only", "distribute-cpus-across-cores"), False),
        (("distribute-cpus-across-numa", "distribute-cpus-across-cores"), False),
        (("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"), False),
        (("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"), False),
        (("prefer-align-cpus-by-uncorecache", "full-pcpus-only"), True),
        (("distribute-cpus-across-numa", "full-pcpus-only"), True),
        (("strict-cpu-reservation", "distribute-cpus-across-cores"), True),
        (("align-by-socket", "distribute-cpus-across-numa"), True),
    ],
)
def test_some_options_exclude_each_other(names: tuple[str, str], allowed: bool) -> None:
    if allowed:
        cpu_options(dict.fromkeys(names, True))
        return
    cpu_options({names[0]: True, names[1]: False})
    with pytest.raises(CpuConfigError) as caught:
        cpu_options(dict.fromkeys(names, True))
    assert str(caught.value) == (
        f"static policy options {names[0]} and {names[1]} can not be used at the same time"
    )


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(CpuConfigError, match='unknown CPU Manager Policy option: "no-such"'):
        cpu_options({"no-such": True})


@pytest.mark.parametrize(
    ("machine", "topology_policy", "problem"),
    [
        (m.FOUR_NODES, "restricted", None),
        (m.TWO_SOCKETS, "none", None),
        (m.FOUR_NODES, "single-numa-node", "single-numa-node is incompatible with .*align-by-soc"),
        (m.CACHES_TWO_SOCKETS, "none", r"more sockets \(2\) than NUMA nodes \(1\)"),
    ],
)
def test_sockets_count_as_close_only_where_they_are_larger_than_nodes(
    machine: Machine, topology_policy: str, problem: str | None
) -> None:
    check_options(CpuOptions(), machine, topology_policy)
    if problem is None:
        check_options(CpuOptions(by_socket=True), machine, topology_policy)
        return
    with pytest.raises(CpuConfigError, match=problem):
        check_options(CpuOptions(by_socket=True), machine, topology_policy)
