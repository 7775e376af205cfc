"""What a person may choose about a stack. `up` reads it; the other commands take it from the stack's folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from examples.children import RunFailed
from examples.loopback import HOST, port
from examples.publishing import MODELS, model_file

BUCKET = "warmpool"
MODELS_DEFAULT = ",".join(str(model_file(name)) for name in MODELS)


def _port(default: int, of: str) -> Any:
    return field(default=default, metadata={"of": of})


@dataclass(frozen=True, slots=True)
class Ports:
    """The port of every server, all on loopback. Each is also an environment variable, its name in capitals."""

    port: int = _port(8080, "functions")
    http_port: int = _port(8000, "instance-1, HTTP")
    grpc_port: int = _port(8001, "instance-1, gRPC")
    http_port_2: int = _port(8010, "instance-2, HTTP")
    grpc_port_2: int = _port(8011, "instance-2, gRPC")
    gcs_port: int = _port(4443, "GCS server")
    otlp_port: int = _port(4318, "receiver of traces, OTLP over HTTP")
    prometheus_port: int = _port(9090, "Prometheus")


@dataclass(frozen=True, slots=True)
class Options:
    """A stack as it was asked for.

    Attributes:
        ports: Where its servers listen.
        models: Files that each declare a model, published when the stack comes up.
        source: The file with the function.
        target: The function's name in it.
    """

    ports: Ports
    models: tuple[str, ...]
    source: str
    target: str

    @property
    def store(self) -> str:
        return f"gs://{BUCKET}"

    @property
    def gcs_url(self) -> str:
        return url(self.ports.gcs_port)

    @property
    def otlp_url(self) -> str:
        return url(self.ports.otlp_port)

    @property
    def instance_ports(self) -> tuple[tuple[int, int], ...]:
        """The ports for HTTP and gRPC of each instance."""
        ports = self.ports
        return ((ports.http_port, ports.grpc_port), (ports.http_port_2, ports.grpc_port_2))


def url(number: int) -> str:
    """The address of a server on loopback."""
    return f"http://{HOST}:{number}"


def add_arguments(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """The flags of `up`."""
    for one in fields(Ports):
        default = environment.get(one.name.upper()) or str(one.default)
        flag = f"--{one.name.replace('_', '-')}"
        parser.add_argument(flag, type=port, metavar="N", default=default, help=f"{one.metadata['of']} (%(default)s)")
    models = environment.get("MODELS") or MODELS_DEFAULT
    parser.add_argument("--models", metavar="FILES", default=models, help="they declare a model each (%(default)s)")
    parser.add_argument("--source", default="examples/main.py", help="the file with the function (%(default)s)")
    parser.add_argument("--target", default="main", help="the function's name in it (%(default)s)")


def read(arguments: argparse.Namespace) -> Options:
    """The options that flags give.

    Raises:
        RunFailed: One names a file that is not there.
    """
    models = tuple(path for path in arguments.models.split(",") if path)
    for path in (*models, arguments.source):
        if not Path(path).is_file():
            raise RunFailed(f"{path}: there is no such file; allowed: models that are published, a function's source")
    ports = Ports(**{one.name: getattr(arguments, one.name) for one in fields(Ports)})
    return Options(ports, models, arguments.source, arguments.target)


def ports_by_setting(ports: Ports) -> dict[str, int]:
    """Every port by the name of the variable that chooses it."""
    return {name.upper(): number for name, number in asdict(ports).items()}


def difference(there: Options, asked: Options) -> str:
    """The first setting in which a stack that is there differs from what is asked for; "" if none does."""
    ours, theirs = ({**asdict(one.ports), **asdict(one)} for one in (there, asked))
    for name in ours:
        if name != "ports" and ours[name] != theirs[name]:
            return f"{name.upper()} is {json.dumps(ours[name])}, not {json.dumps(theirs[name])}"
    return ""
