"""What, besides the program and its bucket, decides whether an executable is valid here.

On CPU, XLA checks nothing when it loads an executable: one of another jaxlib or for instructions this processor lacks
loads and then crashes or answers wrongly. So every ingredient is ours to compare, and all of them are read without
importing jax.
"""

from __future__ import annotations

import csv
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache as memoise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cache.ingredients import differences, digest_ingredients

FINGERPRINT_FORMAT = "1"
_JAXLIB_BINARIES = ("libjax_common.so", "_jax.so", "libjax_common.dylib", "_jax.dylib")
_PLUGINS = ("jax_*_plugin", "jax_*_pjrt", "libtpu*")  # CUDA's and ROCm's wheels carry their major version in the name


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Named ingredients; two machines may share executables if and only if all of them are equal."""

    ingredients: Mapping[str, str]

    @property
    def digest(self) -> str:
        """16 hex digits that stand for the ingredients in paths."""
        return digest_ingredients(self.ingredients)[:16]

    def differences(self, found: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Ingredient -> (here, found), for those that differ or that one side lacks."""
        return differences(self.ingredients, found)


def fingerprint_of(
    *, platform_name: str, platform_version: str, device_kind: str, device_count: int, topology: str = ""
) -> Fingerprint:
    """The fingerprint of a PJRT client on this host.

    Args:
        platform_name: "cpu", "cuda", "tpu", ...
        platform_version: the client's own version string.
        device_kind: the kind of the devices, e.g. "cpu" or "NVIDIA H200".
        device_count: how many devices the client addresses.
        topology: what `topology_of` says of all its devices.
    """
    ingredients = {
        "format": FINGERPRINT_FORMAT,
        "jax": installed_version("jax"),
        "jaxlib": installed_version("jaxlib"),
        "jaxlib_binary": jaxlib_binary(),
        "platform": platform_name,
        "platform_version": " ".join(platform_version.split()),
        "device_kind": device_kind,
        "device_count": str(device_count),
        "machine": platform.machine(),
        "xla_flags": " ".join(sorted(os.environ.get("XLA_FLAGS", "").split())),
    }
    if platform_name == "cpu":
        ingredients["cpu_features"] = cpu_features()
        ingredients["cpu_cores"] = str(available_cores())
    else:
        ingredients["plugins"] = " ".join(plugin_builds())
        ingredients["libtpu_flags"] = " ".join(sorted(os.environ.get("LIBTPU_INIT_ARGS", "").split()))
    if topology:  # not there where it says nothing: what was stored before it was known stays valid
        ingredients["topology"] = topology
    return Fingerprint(MappingProxyType(ingredients))


def topology_of(devices: Iterable[Any]) -> str:
    """How devices are wired, as far as they say: "process:coordinates/core" of each, in the order of their ids.

    "" for those of one process that have no coordinates: they are as they are counted.
    """
    described = [
        (one.id, one.process_index, getattr(one, "coords", None), getattr(one, "core_on_chip", None)) for one in devices
    ]
    if len({process for _, process, _, _ in described}) < 2 and not any(coords for _, _, coords, _ in described):
        return ""
    return " ".join(
        f"{process}:{','.join(map(str, coords or ()))}" + ("" if core is None else f"/{core}")
        for _, process, coords, core in sorted(described)
    )


def available_cores() -> int:
    """Cores this process may use: XLA's CPU compiler partitions work by it, under the same JAX cache key."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@memoise
def installed_version(package: str) -> str:
    """The version of an installed package, without importing it."""
    return _dist_info(package).name.removesuffix(".dist-info").partition("-")[2]


def _dist_info(package: str) -> Path:
    """The folder that an installed wheel left beside itself; importlib.metadata would cost a lane's start 30 ms."""
    for entry in sys.path:
        for found in Path(entry).glob(f"{package}-*.dist-info"):
            return found
    raise LookupError(f"{package} is not installed from a wheel: nothing says which build it is")


@memoise
def cpu_features() -> str:
    """Instruction set extensions of the first processor, sorted ("" where the system does not say)."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in {"flags", "Features"}:
                    return " ".join(sorted(value.split()))
    except OSError:
        pass
    return platform.processor()


@memoise
def jaxlib_binary() -> str:
    """The digest that the wheel records for its native library: hashing 200 MB would cost more than a load."""
    return " ".join(_recorded_digests(_dist_info("jaxlib"), _JAXLIB_BINARIES))


def plugin_builds() -> list[str]:
    """The version of every PJRT plugin that jax may find, and its digests: there the compiler is not jaxlib's own."""
    found = {
        folder.name.removesuffix(".dist-info"): folder
        for entry in reversed(sys.path)  # of two with one name the first on the path counts
        for pattern in _PLUGINS
        for folder in Path(entry).glob(f"{pattern}-*.dist-info")
    }
    return [" ".join([name, *_recorded_digests(folder, (".so",))]) for name, folder in sorted(found.items())]


def _recorded_digests(dist_info: Path, endings: tuple[str, ...]) -> list[str]:
    record = (dist_info / "RECORD").read_text()
    return sorted(row[1] for row in csv.reader(record.splitlines()) if row and row[0].endswith(endings))
