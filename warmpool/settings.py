"""An instance's settings: one frozen object, read once from the environment and the command line, and passed down."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cache.settings import URIS, StoreSettings
from warmpool.errors import WarmpoolError

DEADLINE_MS_MAX = 24 * 3600 * 1000
GATHER_MS_MAX = 10_000
MEMORY_BYTES_MAX = 2**53
COMPILE_S_MAX = 24 * 3600
ACCELERATORS = ("auto", "none", "jax")
COMPILING = ("auto", "off")


class SettingError(WarmpoolError):
    """A setting has a value that is not allowed; the message names it."""


class PortTaken(SettingError):
    """A port cannot be bound; the message says which setting chooses another."""

    def __init__(self, setting: str, host: str, port: int, reason: str) -> None:
        flag = f"--{setting.replace('_', '-')}"
        super().__init__(f"{setting} {port} on {host} cannot be bound ({reason}); choose another with {flag}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(StoreSettings):
    """Every setting can be given as a flag or as WARMPOOL_<NAME> in the environment; the flag wins."""

    host: str = "127.0.0.1"
    """Address that the servers bind."""
    port: int = 8000
    """HTTP port; PORT, as Cloud Run sets it, is its environment variable too."""
    grpc_port: int = 8001
    """gRPC port; 0 for none."""
    accelerator: str = "auto"
    """The primary lane's device: "jax" from jax.devices(), "none" the CPU without jax, "auto" what is there."""
    deadline_ms: int = 30_000
    """Time a request gets that brings no deadline of its own."""
    drain_s_max: float = 10.0
    """Time from SIGTERM to the end; requests get seven tenths of it, or all but 3 s if that is more."""
    run_s_max: float = 60.0
    """Time that a batch may run before its lane is taken for hung and replaced."""
    load_s_max: float = 120.0
    """Time that a lane's start, a load or mapping weights may take before the lane is taken for hung and replaced."""
    queue_rows_max: int = 4096
    """Rows that may wait in all; more are refused with 429."""
    queue_bytes_max: int = 256 << 20
    """Bytes of requests that may be received, wait and run in all; more are refused with 429."""
    gather_ms: float = 0.0
    """Time that what could run waits for company that makes its rows cheaper; no promised deadline is broken by it."""
    priority_aging_ms: int = 1000
    """Waiting that a level of priority is worth."""
    model_weights: str = ""
    """Shares of a lane's time, such as "digits=2,embed=0.5"; a model that is not named has 1."""
    lane_memory_bytes_max: int = 0
    """Memory of a lane for weights and executables; 0 for what its device has, or on a CPU without a limit."""
    compile: str = "auto"
    """Whether what is missing in the store is compiled beside this instance: "auto" where it may store it, or "off"."""
    compile_s_max: float = 600.0
    """Time that one compile gets."""
    compile_cpu_s_max: float = 1200.0
    """Time that one compile gets of all processors together."""
    compile_memory_bytes_max: int = 8 << 30
    """Private memory that one compile gets; 0 for any."""
    body_bytes_max: int = 64 << 20
    """Largest request body; larger ones are refused with 413, and so are those that are too large for their method."""
    traces_kept_max: int = 512
    """Traces that the local ring keeps."""
    otlp_endpoint: str = ""
    """Base URL of an OTLP/HTTP collector, "-" for lines of JSON on standard output, empty for none;
    OTEL_EXPORTER_OTLP_ENDPOINT counts too."""

    def __post_init__(self) -> None:
        StoreSettings.__post_init__(self)
        _require("accelerator", self.accelerator, ", ".join(ACCELERATORS), holds=self.accelerator in ACCELERATORS)
        _require("compile", self.compile, ", ".join(COMPILING), holds=self.compile in COMPILING)
        for name in ("port", "grpc_port"):
            _require(name, getattr(self, name), "0 to 65535", holds=0 <= getattr(self, name) <= 65535)
        same = 0 < self.port == self.grpc_port
        _require("grpc_port", self.grpc_port, "another one than the HTTP port", holds=not same)
        for name in ("lane_memory_bytes_max", "compile_memory_bytes_max"):
            value = getattr(self, name)
            _require(name, value, f"0 to {MEMORY_BYTES_MAX}", holds=0 <= value <= MEMORY_BYTES_MAX)
        allowed = f"0 to {GATHER_MS_MAX}"
        _require("gather_ms", self.gather_ms, allowed, holds=0 <= self.gather_ms <= GATHER_MS_MAX)
        allowed = "MODEL=WEIGHT pairs after commas, each model once, weights from 0.001 to 1000"
        _require("model_weights", self.model_weights, allowed, holds=_weights(self.model_weights) is not None)
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            _require(name, value, f"more than 0, up to {largest}", holds=0 < value <= largest)
        allowed = "http://HOST[:PORT][/PATH] or the same with https, - for standard output, or nothing"
        _require("otlp_endpoint", self.otlp_endpoint, allowed, holds=bool(_ENDPOINT.fullmatch(self.otlp_endpoint)))

    @property
    def weights(self) -> dict[str, float]:
        """`model_weights` by model."""
        return _weights(self.model_weights) or {}


_LARGEST = {
    "deadline_ms": DEADLINE_MS_MAX,
    "drain_s_max": DEADLINE_MS_MAX // 1000,
    "compile_s_max": COMPILE_S_MAX,
    "compile_cpu_s_max": COMPILE_S_MAX,
    "run_s_max": DEADLINE_MS_MAX // 1000,
    "load_s_max": DEADLINE_MS_MAX // 1000,
    "queue_rows_max": 2**31 - 1,
    "priority_aging_ms": DEADLINE_MS_MAX,
    "queue_bytes_max": 2**53,
    "body_bytes_max": 2**31 - 1,  # gRPC keeps it in 32 bits
    "traces_kept_max": 100_000,  # all of them are looked at where some are read
}
_ENDPOINT = re.compile(r"(?i:https?)://([^\s/?#@]+@)?(\[[0-9a-fA-F:.]+\]|[^\s/?#@:\[\]]+)(:[0-9]{1,5})?(/[^\s?#]*)?|-?")
_WEIGHT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

_ALIASES = {"port": ("PORT",), "otlp_endpoint": ("OTEL_EXPORTER_OTLP_ENDPOINT",)}
_KINDS: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
_WHETHER = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_ALLOWED = {int: "a whole number", float: "a number", bool: ", ".join(_WHETHER)}


def add_store_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that opens a store; each is also WARMPOOL_<NAME> in the environment."""
    parser.add_argument("--store", metavar="URI", help=URIS)
    parser.add_argument("--trusted-keys", metavar="FILES", help="public keys (PEM) whose signatures count, or folders")
    parser.add_argument("--distrusted-keys", metavar="IDS", help="ids of keys whose signatures never count")
    parser.add_argument("--signing-key", metavar="FILE", help="private key (PEM) that signs what is stored")
    parser.add_argument(
        "--allow-unsigned",
        action="store_const",
        const=True,
        help="take what nobody trusted has signed: whoever can write to the store can then run code here",
    )
    parser.add_argument(
        "--encryption-key",
        metavar="KEY",
        help="file (32 bytes) or gcp-kms://... that what is stored is encrypted with; more after commas only decrypt",
    )
    parser.add_argument(
        "--audit-log", metavar="FILE", help="where what is done to the store is told, - for standard output"
    )


def read_settings[S: StoreSettings](kind: type[S], flags: Mapping[str, Any], environment: Mapping[str, str]) -> S:
    """Settings from flags (None: not given) over the environment over the defaults.

    Raises:
        SettingError: a value cannot be read or is not allowed.
    """
    values: dict[str, Any] = {}
    for setting in fields(kind):
        names = (f"WARMPOOL_{setting.name.upper()}", *_ALIASES.get(setting.name, ()))
        found = flags.get(setting.name)
        if found is None:
            found = next((environment[name] for name in names if environment.get(name)), None)
        if found is not None:
            values[setting.name] = _parsed(setting.name, found, _KINDS[str(setting.type)])
    if "store" not in values:
        raise SettingError(f"store is not set: give --store or WARMPOOL_STORE, {URIS}")
    if not values["store"]:
        raise SettingError(f"store is '', allowed: {URIS}")
    if flags.get("json") and values.get("audit_log") == "-":
        raise SettingError("audit_log is '-', allowed with --json: a file, for standard output gets the JSON")
    try:
        return kind(**values)
    except ValueError as error:
        raise SettingError(str(error)) from None


def _parsed(name: str, value: Any, kind: type) -> Any:
    try:
        return _WHETHER[str(value).lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        raise SettingError(f"{name} is {value!r}, allowed: {_ALLOWED[kind]}") from None


def _require(name: str, value: object, allowed: str, *, holds: bool) -> None:
    if not holds:
        raise SettingError(f"{name} is {value!r}, allowed: {allowed}")


def _weights(text: str) -> dict[str, float] | None:
    """Weights by model, None if the text is not what it has to be."""
    pairs = [pair.partition("=") for pair in text.split(",")] if text else []
    found: dict[str, float] = {}
    for model, _, weight in pairs:
        name = model.strip()
        if not name or name in found or not _WEIGHT.fullmatch(weight.strip()):
            return None
        found[name] = float(weight)
    return found if all(0.001 <= weight <= 1000 for weight in found.values()) else None
