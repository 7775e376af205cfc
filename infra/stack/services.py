"""The processes of a stack: what is run, with what environment, in which order, and how one sees that it is ready."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from examples.loopback import HOST
from examples.publishing import WARMPOOL
from infra.stack.folder import Folder
from infra.stack.options import Options, url

STOP_S_MAX = 20  # an instance ends itself after 10 s
_TIERS = {"instance-1": 1, "instance-2": 1, "functions": 2}


@dataclass(frozen=True, slots=True)
class Service:
    """One process.

    Attributes:
        name: Of its log, too.
        command: What is run.
        url: Where it listens.
        ready: The path that answers 200 when it is ready; "" where any answer will do.
        environment: What it gets beside that of the stack.
    """

    name: str
    command: tuple[str, ...]
    url: str
    ready: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def tier(self) -> int:
        """See `tier_of`."""
        return tier_of(self.name)


def tier_of(name: str) -> int:
    """0 for what the others need, 1 for instances, 2 for functions: later ones come up after, and go down before."""
    return _TIERS.get(name, 0)


def services(options: Options, folder: Folder, gcs: Path, prometheus: Path | None) -> tuple[Service, ...]:
    """All of them, lower tiers first.

    Args:
        options: What was asked for.
        folder: Where they keep what they keep.
        gcs: The program that is the GCS server.
        prometheus: The program, None where there is none.
    """
    found = [_gcs(options, folder, gcs), _receiver(options)]
    if prometheus:
        found.append(_prometheus(options, folder, prometheus))
    found += [_instance(options, folder, number) for number in (1, 2)]
    found.append(_functions(options))
    return tuple(found)


def client_environment(options: Options) -> dict[str, str]:
    """What every process needs that uses the bucket; proxies cannot reach this machine's own addresses."""
    here = f"{HOST},localhost"
    return {"STORAGE_EMULATOR_HOST": options.gcs_url, "NO_PROXY": here, "no_proxy": here, "PYTHONUNBUFFERED": "1"}


def publisher_key(folder: Folder) -> Path:
    """The private key of who publishes."""
    return folder.keys / "publisher.pem"


def instance_key(folder: Folder) -> Path:
    """The private key with which instances sign what they compile."""
    return folder.keys / "instance.pem"


def _gcs(options: Options, folder: Folder, program: Path) -> Service:
    port = options.ports.gcs_port
    command = (
        *(str(program), "-scheme", "http", "-host", HOST, "-port", str(port), "-log-level", "warn"),
        *("-backend", "filesystem", "-filesystem-root", str(folder.artifacts)),
        *("-external-url", url(port), "-public-host", f"{HOST}:{port}"),
    )
    return Service("gcs", command, url(port), "/storage/v1/b?project=-")


def _receiver(options: Options) -> Service:
    command = (sys.executable, "-m", "infra.stack.receiver", "--port", str(options.ports.otlp_port))
    return Service("otlp", command, options.otlp_url, "/v1/traces?count=1")


def _prometheus(options: Options, folder: Folder, program: Path) -> Service:
    port = options.ports.prometheus_port
    command = [str(program), f"--config.file={folder.prometheus_configuration}"]
    command += [f"--storage.tsdb.path={folder.metrics}", "--storage.tsdb.retention.time=7d", "--log.level=warn"]
    command += [f"--web.listen-address={HOST}:{port}"]
    pages = program.parent.parent / "share" / "prometheus" / "web"
    if pages.is_dir():  # where Debian's package was unpacked, and not installed
        command.append(f"--web.local-assets={pages}/")
    return Service("prometheus", tuple(command), url(port), "/-/ready")


def _instance(options: Options, folder: Folder, number: int) -> Service:
    name = f"instance-{number}"
    http, grpc = options.instance_ports[number - 1]
    signing = instance_key(folder)
    command = (
        *(WARMPOOL, "serve", "--store", options.store, "--cache-folder", str(folder.copies / name)),
        *("--trusted-keys", f"{publisher_key(folder)}.pub,{signing}.pub", "--signing-key", str(signing)),
        *("--host", HOST, "--port", str(http), "--grpc-port", str(grpc), "--otlp-endpoint", options.otlp_url),
    )
    # Spans come to be seen after half a second, not after five.
    environment = {"OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={name}", "OTEL_BSP_SCHEDULE_DELAY": "500"}
    return Service(name, command, url(http), "/v2/health/ready", environment)


def _functions(options: Options) -> Service:
    # Its own server, gunicorn, leaves a process behind when it is killed, which keeps the port from the next.
    command = (
        *(sys.executable, "-m", "uvicorn", "functions_framework.aio:app", "--lifespan", "on", "--no-access-log"),
        *("--host", HOST, "--port", str(options.ports.port)),
    )
    environment = {
        "FUNCTION_SOURCE": options.source,
        "FUNCTION_TARGET": options.target,
        "WARMPOOL_URLS": ",".join(url(http) for http, _ in options.instance_ports),
        "OTEL_EXPORTER_OTLP_ENDPOINT": options.otlp_url,
    }
    return Service("functions", command, url(options.ports.port), "", environment)
