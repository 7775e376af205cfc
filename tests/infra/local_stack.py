"""A stack of one small model as a person has it: brought up, asked and taken down by the commands that make runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.loopback import get_or_post
from tests.all_the_time import AllTheTime
from tests.instance_process import alive, descendants, wait_until
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
COMMAND_S_MAX = 300.0
PORTS = (
    *("port", "http_port", "grpc_port", "http_port_2", "grpc_port_2"),
    *("gcs_port", "otlp_port", "prometheus_port"),
)
TIMEOUT_MS = 120_000  # of a request, so that none is late because a machine is


class StackProcesses:
    """The stack of a folder; `up` first."""

    def __init__(self, folder: Path, **ports: int) -> None:
        self.folder = folder
        self.ports = {name: ports.get(name) or free_port() for name in PORTS}
        self.pids: set[int] = set()  # whatever was seen to run

    def command(self, *arguments: str) -> list[str]:
        """What a person types."""
        name, *others = arguments
        return [sys.executable, "-m", "infra.stack", name, "--folder", str(self.folder), *others]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        return subprocess.run(
            self.command(*arguments),
            cwd=ROOT,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )

    def taken_down_in_the_end(self) -> subprocess.Popen[str]:
        """`down --destroy`, once its input is closed: by us, or by the system when these tests are killed."""
        again = 'cat; for _ in $(seq 100); do "$@" && exit; sleep 1; done; exit 1'  # an `up` may be at work
        return subprocess.Popen(
            ["sh", "-c", again, "sh", *self.command("down", "--destroy", "--json")],
            cwd=ROOT,
            env=self.environment(CONFIRM="yes"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # what ends our whole group must not end this
        )

    def environment(self, **added: str) -> dict[str, str]:
        """Ours without what would be taken for a setting."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "WARMPOOL_"))}
        chosen = {name.upper(): str(number) for name, number in self.ports.items()}
        return {**kept, **chosen, "MODELS": "tests/infra/tripling.py", "CONFIRM": "", **added}

    @property
    def up_arguments(self) -> tuple[str, ...]:
        return ("up", "--source", "tests/infra/tripling_function.py", "--target", "tripling")

    def up(self) -> str:
        """Bring it up, or leave it up; what was said."""
        done = self.run(*self.up_arguments)
        assert done.returncode == 0, done.stderr + self.said()
        self.note()
        return done.stdout + done.stderr

    def said(self) -> str:
        """What its processes wrote last."""
        logs = sorted(self.folder.glob("logs/*.log"))
        return "".join(f"\n== {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def note(self) -> None:
        """Remember the processes that run, to see them gone at the end."""
        supervisor = int((self.folder / "supervisord.pid").read_text())
        self.pids |= {supervisor, *descendants(supervisor)}

    def assert_gone(self) -> None:
        """Nothing runs any more of what ever was seen to."""
        assert self.pids
        wait_until(lambda: not any(map(alive, self.pids)))

    def status(self) -> dict[str, Any]:
        done = self.run("status", "--json")
        document: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode == 0) == (document["up"] and not any(one["unready"] for one in document["processes"]))
        return document

    def process(self, name: str) -> dict[str, Any]:
        """One process as `status` has it."""
        (found,) = (one for one in self.status()["processes"] if one["name"] == name)
        return found

    def url(self, port: str, path: str) -> str:
        return f"http://127.0.0.1:{self.ports[port]}{path}"

    def get(self, port: str, path: str) -> Any:
        """JSON of one of its servers."""
        with get_or_post(self.url(port, path)) as response:
            return json.loads(response.read())

    def triple(self, values: list[float], **headers: str) -> tuple[int, Any]:
        """Ask the function; status and content of its answer."""
        sent = {
            "x-warmpool-timeout-ms": str(TIMEOUT_MS),
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        request = urllib.request.Request(self.url("port", "/"), json.dumps(values).encode(), sent)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=180) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(errors="replace")

    def objects(self) -> dict[str, str]:
        """The digests of all objects in the bucket by their names."""
        found: dict[str, str] = {}
        page = ""
        while True:
            listed = self.get("gcs_port", f"/storage/v1/b/warmpool/o?pageToken={page}")
            found |= {one["name"]: one["md5Hash"] for one in listed.get("items", [])}
            page = listed.get("nextPageToken", "")
            if not page:
                return found


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer that should not have been."""

    values: list[float]
    status: int
    content: Any


class Tripled(AllTheTime):
    """Callers that ask the stack's function all the time, each time for other numbers; every answer is checked.

    Attributes:
        answered: How many right answers each caller has had.
    """

    def __init__(self, stack: StackProcesses, callers: int = 4) -> None:
        super().__init__(callers)
        self._stack = stack
        self.answered = [0] * callers

    def ask_on(self, number: int) -> None:
        turn = 0
        while not self.stopping.is_set():
            turn += 1
            values = [float(number), float(turn)]
            try:
                status, content = self._stack.triple(values)
            except OSError as error:
                status, content = 0, repr(error)
            if status == 200 and content["tripled"] == [3 * value for value in values]:
                self.answered[number] += 1
            else:
                with self.lock:
                    self.wrong.append(Wrong(values, status, content))

    def wait_more(self, count: int) -> None:
        """Until so many more answers were right, or one was not."""
        target = sum(self.answered) + count
        wait_until(lambda: sum(self.answered) >= target or self.wrong, wait_s_max=120)

    def wait_stuck(self) -> None:
        """Until a caller waits while the others have answer after answer, or one was wrong."""
        last = list(self.answered)
        since = [sum(last)] * len(last)  # how many answers there were when each had its last

        def stuck() -> bool:
            now = list(self.answered)
            for number, (had, has) in enumerate(zip(last, now, strict=True)):
                if has > had:
                    last[number], since[number] = has, sum(now)
            return bool(self.wrong) or sum(now) - min(since) >= 20

        wait_until(stuck, wait_s_max=120)
