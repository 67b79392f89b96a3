"""Machines for the tests of the CPU manager."""

from __future__ import annotations

from collections.abc import Sequence

from kubelet_trio.managers import Cpu, Machine, NumaNode
from kubelet_trio.managers.cpus import cpu_ids, parse_mask


def cpus_of(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as `0-3,8`."""
    return cpu_ids(parse_mask(text))


def machine_of(cpus: Sequence[Cpu]) -> Machine:
    """Return the machine of these CPUs."""
    by_node: dict[int, set[int]] = {}
    for cpu in cpus:
        by_node.setdefault(cpu.node, set()).add(cpu.id)
    nodes = (NumaNode(n, frozenset(ids), 1 << 30) for n, ids in sorted(by_node.items()))
    return Machine(tuple(sorted(cpus)), tuple(nodes))


def regular(
    cores: int, threads: int = 1, *, packages: int = 1, nodes: int = 1, caches: int = 1
) -> Machine:
    """Return a machine of equal parts, each with cores that follow one another.

    Thread t of core c is CPU c + t * cores, as Linux numbers them.
    """
    return machine_of(
        [
            Cpu(
                thread * cores + core,
                core,
                core * caches // cores,
                core * nodes // cores,
                core * packages // cores,
            )
            for thread in range(threads)
            for core in range(cores)
        ]
    )


def alternating(cores: int, threads: int) -> Machine:
    """Return a machine of two sockets whose cores take turns, with one cache for all."""
    return machine_of(
        [
            Cpu(thread * cores + core, core, 0, core % 2, core % 2)
            for thread in range(threads)
            for core in range(cores)
        ]
    )


def of_cores(*packages: str) -> Machine:
    """Return a machine of sockets with a NUMA node each: cores by `/`, their threads by blank."""
    return machine_of(
        [
            Cpu(int(cpu), int(core.split()[0]), 0, package, package)
            for package, cores in enumerate(packages)
            for core in cores.split("/")
            for cpu in core.split()
        ]
    )


def hybrid() -> Machine:
    """Return 8 cores of one thread (0-7), and 8 of two (8-15 with 16-23)."""
    cpus = [Cpu(cpu, cpu if cpu < 16 else cpu - 8, 0, 0, 0) for cpu in range(24)]
    return machine_of(cpus)


# Xeon Phi with 4 clusters and 4 threads a core, of hwloc's gallery (KNL.SNC4.H50).
PHI = of_cores(
    "0 109 169 229/1 13 25 38/2 14 26 39/9 21 33 46/10 22 34 47/50 110 170 230/57 117 177 237/"
    "58 118 178 238/71 131 191 251/72 132 192 252/79 139 199 259/80 140 200 260/87 147 207 267/"
    "88 148 208 268/95 155 215 275/96 156 216 276/103 163 223 283/104 164 224 284",
    "3 15 27 40/4 16 28 41/11 23 35 48/12 24 36 49/51 111 171 231/52 112 172 232/59 119 179 239/"
    "60 120 180 240/65 125 185 245/66 126 186 246/73 133 193 253/74 134 194 254/81 141 201 261/"
    "82 142 202 262/89 149 209 269/90 150 210 270/97 157 217 277/98 158 218 278",
    "5 17 29 42/6 18 30 43/53 113 173 233/54 114 174 234/61 121 181 241/62 122 182 242/"
    "67 127 187 247/68 128 188 248/75 135 195 255/76 136 196 256/83 143 203 263/84 144 204 264/"
    "91 151 211 271/92 152 212 272/99 159 219 279/100 160 220 280/105 165 225 285/106 166 226 286",
    "7 19 31 44/8 20 32 45/37 108 168 228/55 115 175 235/56 116 176 236/63 123 183 243/"
    "64 124 184 244/69 129 189 249/70 130 190 250/77 137 197 257/78 138 198 258/85 145 205 265/"
    "86 146 206 266/93 153 213 273/94 154 214 274/101 161 221 281/102 162 222 282/107 167 227 287",
)

ONE_SOCKET = regular(4, 2)  # cores 0,4 1,5 2,6 3,7
TWO_SOCKETS = alternating(6, 2)  # cores 0,6 2,8 4,10 and 1,7 3,9 5,11
TWO_SOCKETS_NO_SMT = regular(8, packages=2, nodes=2)
THREE_SOCKETS = of_cores("6 7/8 9/10 11", "0 1/2 3/4 5", "12 13/14 15/16 17")
FOUR_NODES = regular(40, 2, packages=2, nodes=4)  # 0-9,40-49 10-19,50-59 20-29,60-69 30-39,70-79
EIGHT_NODES = regular(128, 2, packages=2, nodes=8)

# With last-level caches of their own.
CACHES_TWO_SOCKETS = regular(16, packages=2, caches=4)
CACHES_TWO_NODES = regular(16, nodes=2, caches=4)
CACHES_SMT = regular(8, 2, caches=2)  # 0-3,8-11 4-7,12-15
CACHES = regular(16, caches=4)
GENOA = regular(192, 2, packages=2, nodes=2, caches=24)
ROME = regular(64, 2, caches=16)
ROME_NO_SMT = regular(64, caches=16)
SMALL_TWO_SOCKETS = regular(64, packages=2, nodes=2, caches=8)
SMALL = regular(32, caches=4)
BERGAMO = regular(128, 2, caches=16)
TWO_NODES_A_SOCKET = regular(192, packages=2, nodes=4, caches=24)
SUB_NUMA = regular(120, 2, packages=2, nodes=4, caches=2)
ALTRA = regular(128, caches=16)
GRAVITON = regular(64)
HYBRID = hybrid()
