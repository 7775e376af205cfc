"""A cloud that commands can deploy to: stand-ins on the PATH, and revisions that answer over HTTP."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
STAND_IN = Path(__file__).with_name("stand_in.py")
TOOLS = ("gcloud", "terraform", "podman", "git", "curl", "sleep")
SYSTEM = ("sh", "make", "jq", "cat", "sed", "true")
REGISTRY = "europe-west4-docker.pkg.dev/my-project-1/warmpool-dev"
IMAGE = f"{REGISTRY}/instance"
OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
MAKE_S_MAX = 60.0
READY = (200, '{"ready":true,"reasons":{}}')
UNREADY = (503, '{"ready":false,"reasons":{"toy":"nothing is warm"}}')


class Done(NamedTuple):
    """What make exited with and wrote."""

    status: int
    out: str
    err: str

    def told(self) -> list[str]:
        """The lines of standard error but for the commands and steps that are shown, and for what make says itself."""
        return [line for line in self.err.splitlines() if not line.startswith(("+ ", "# ", "make: "))]


def exposition(answered: int, failed: int, seconds: float = 0.01, *, fast: int = 0) -> str:
    """The metrics of an instance that answered so many, each within so many seconds; `fast` of them at once."""
    steps = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, float("inf"))
    labels = 'model="toy",method="predict"'
    lines = ["# TYPE warmpool_requests counter", "warmpool_ready 1.0"]
    lines.append(f'warmpool_requests_total{{{labels},status="200"}} {answered - failed}.0')
    if failed:
        lines.append(f'warmpool_requests_total{{{labels},status="500"}} {failed}.0')
    lines += [
        f'warmpool_request_seconds_bucket{{{labels},le="{"+Inf" if step > 30 else step}"}} '
        f"{float(answered if step >= seconds else fast)}"
        for step in steps
    ]
    return "\n".join(lines) + "\n"


class Revisions:
    """What each revision answers at its URL; the tests change it.

    Attributes:
        ready: Status and body of the ready check, by revision.
        metrics: Text of the metrics, by revision.
        asked: Path and token of what was asked, in order.
        first: Called with each path; what it returns is answered, unless that is None.
    """

    def __init__(self) -> None:
        self.first: Callable[[str], tuple[int, str] | None] = lambda path: None
        self.ready: dict[str, tuple[int, str]] = {}
        self.metrics: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        self.looked = threading.Event()

    def get(self, path: str, token: str) -> tuple[int, str]:
        self.asked.append((path, token))
        if answer := self.first(path):
            return answer
        _, name, what = path.split("/", 2)
        if what == "metrics":
            self.looked.set()
            return 200, self.metrics[name]
        return self.ready[name]


class _Handler(BaseHTTPRequestHandler):
    revisions: Revisions

    def do_GET(self) -> None:
        status, body = self.revisions.get(self.path, self.headers.get("authorization", ""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering(revisions: Revisions) -> Iterator[str]:
    """The base URL of these revisions while they answer."""
    handler = type("Handler", (_Handler,), {"revisions": revisions})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Cloud:
    """One environment, and a person who runs make.

    Args:
        folder: An empty folder for the stand-ins and the settings.
        url: Base of the revisions' URLs.
        tools: What is stood for; a tool that is left out is missing.
    """

    def __init__(self, folder: Path, url: str, tools: tuple[str, ...] = TOOLS) -> None:
        self.folder = folder
        self.settings = folder / "settings.env"
        self.settings.write_text("PROJECT=my-project-1\nREGION=europe-west4\nENV=dev\n")
        script = f"#!{sys.executable} -SEI\n{STAND_IN.read_text()}"
        for tool in tools:
            path = folder / tool
            path.write_text(script)
            path.chmod(0o755)
        for tool in SYSTEM:
            if found := shutil.which(tool):
                (folder / tool).symlink_to(found)
        outputs = {
            "bucket": "gs://my-bucket",
            "registry": REGISTRY,
            "pool_service": "warmpool-dev-pool",
            "pool_url": "https://pool.example",
            "publish_job": "warmpool-dev-publish",
            "function_service_account": "function@my-project-1.iam",
            "function_names": {"embed": "warmpool-dev-embed", "digits": "warmpool-dev-digits"},
            "care_jobs": {"gc": "warmpool-dev-gc"},
        }
        self.world: dict[str, Any] = {
            "outputs": outputs,
            "url": url,
            "protected": False,
            "changed": "",
            "origin": "https://me:a-secret@git.example/warmpool.git",
            "digest": NEW,
            "failing": [],
            "images": {"pool-00001": f"{IMAGE}@{OLD}"},
            "shares": {"pool-00001": 100},
            "tags": {},
            "followers": {},
            "functions": {},
            "unready": [],
            "unmade": [],
            "serving": {},
        }

    @property
    def world(self) -> dict[str, Any]:
        """What the cloud is like."""
        return json.loads((self.folder / "world.json").read_text())

    @world.setter
    def world(self, world: dict[str, Any]) -> None:
        (self.folder / "world.json").write_text(json.dumps(world))

    def change(self, **changes: Any) -> None:
        self.world = self.world | changes

    def command(self, target: str, **values: str | float) -> tuple[list[str], dict[str, str]]:
        """What make is run with, and in which environment."""
        named = {"SETTINGS": self.settings, **values}
        words = ["make", "-s", "--no-print-directory", target, *(f"{name}={value}" for name, value in named.items())]
        kept = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL"}}
        return words, kept | {"PATH": str(self.folder)}

    def make(self, target: str, **values: str | float) -> Done:
        """`make TARGET NAME=VALUE ...`, with nobody at the terminal."""
        words, environment = self.command(target, **values)
        done = subprocess.run(
            [str(self.folder / "make"), *words[1:]], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=MAKE_S_MAX, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def calls(self) -> list[str]:
        """The commands that were run, in order."""
        return [" ".join(call["argv"]) for call in self._recorded()]

    def inputs(self) -> list[str]:
        """What commands read from their standard input."""
        return [call["stdin"] for call in self._recorded() if call["stdin"]]

    def _recorded(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]
        except FileNotFoundError:
            return []
