"""Reads the ResourceSlices that drivers hand to a node without an API server.

A driver writes them to `<root-dir>/plugins/<driver>/resourceslices/`, as YAML or JSON, and replaces
a file by renaming another one onto it. Files are read again for each allocation: there is nothing
to watch. A driver speaks for itself alone: slices of another driver are refused, by file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lightkube.models.resource_v1 import ResourceSlice

from kubelet_trio.managers import OfferedSlices
from kubelet_trio.model import Offload, get_logger, open_directory, read_regular
from kubelet_trio.sources.errors import ManifestError
from kubelet_trio.sources.files import is_ignored
from kubelet_trio.sources.manifest import load_manifest

log = get_logger()

FOLDER = "resourceslices"
_SUFFIXES = (".yaml", ".yml", ".json")
_MOST_FILES = 256  # of one driver
_MOST_BYTES = 2 << 20  # of one file: 128 devices with 32 attributes are less than 1 MiB


class SliceFiles:
    """A `SliceReader` of the files of all drivers."""

    def __init__(self, root_dir: Path, node_name: str, offload: Offload) -> None:
        self._plugins = root_dir / "plugins"
        self._node_name = node_name
        self._offload = offload
        self._known: frozenset[str] = frozenset()  # problems that are logged already

    async def read(self) -> OfferedSlices:
        """Return the slices of all valid files, and what is wrong with the others."""
        found = await self._offload(read_slices, self._plugins, self._node_name)
        for problem in (p for p in found.problems if p not in self._known):
            log.warning("claims.slice_problem", problem=problem)
        self._known = frozenset(found.problems)
        return found


def read_slices(plugins: Path, node_name: str) -> OfferedSlices:
    """Return the slices below a directory with one directory for each driver. Blocks."""
    slices: list[ResourceSlice] = []
    problems: list[str] = []
    try:
        drivers = sorted(os.listdir(plugins))
    except OSError:  # no driver has ever been here
        drivers = []
    for driver in drivers:
        folder = plugins / driver / FOLDER
        try:
            descriptor = open_directory(folder, own=2)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as exc:
            problems.append(f"{folder}: cannot be read: {exc.strerror}")
            continue
        try:
            for found in _read_folder(descriptor, folder, driver, node_name):
                if isinstance(found, str):
                    problems.append(found)
                else:
                    slices.append(found)
        finally:
            os.close(descriptor)
    return OfferedSlices(tuple(slices), tuple(problems))


def _read_folder(
    descriptor: int, folder: Path, driver: str, node_name: str
) -> Iterator[ResourceSlice | str]:
    """Yield the slices of a driver, and the problems of its files."""
    try:
        names = sorted(os.listdir(descriptor))
    except OSError as exc:
        yield f"{folder}: cannot be read: {exc.strerror}"
        return
    names = [name for name in names if name.endswith(_SUFFIXES) and not is_ignored(name)]
    if len(names) > _MOST_FILES:
        yield f"{folder}: more than {_MOST_FILES} files: the rest is not read"
    for name in names[:_MOST_FILES]:
        path = folder / name
        try:
            # Its driver may be a container: see `model.foreign`.
            data = read_regular(name, _MOST_BYTES, directory=descriptor)
            objects = load_manifest(data, str(path), node_name=node_name)
        except FileNotFoundError:  # replaced or removed meanwhile
            continue
        except OSError as exc:
            yield f"{path}: cannot be read: {exc.strerror}"
            continue
        except ManifestError as exc:
            yield str(exc)
            continue
        if objects.pods:
            yield f"{path}: only ResourceSlices belong here, not Pod"
        for value in objects.objects:
            if not isinstance(value, ResourceSlice):
                yield f"{path}: only ResourceSlices belong here, not {type(value).__name__}"
            elif value.spec.driver != driver:
                yield f"{path}: spec.driver is {value.spec.driver}, and the directory of {driver}"
            else:
                yield value
