"""An instance that serves lines, and callers that ask it all the time."""

from __future__ import annotations

import http.client
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cache.local_store import LocalStore
from tests.all_the_time import AllTheTime
from tests.instance_process import InstanceProcess, Reply, inferred, records_of, wait_until
from tests.warmpool.line_versions import MODEL, VERSIONS, Line
from warmpool import wire


class Lines(InstanceProcess):
    """An instance of the lines, with its audit log."""

    def __init__(self, store: LocalStore, folder: Path, *flags: str, **environment: str) -> None:
        self.audit_file = folder / "audit"
        super().__init__(store.root, folder / "log", "--audit-log", str(self.audit_file), *flags, **environment)

    def loads(self, version: str) -> Counter[str]:
        """How many executables of a version were made warm so far, by lane."""
        records = records_of(self.audit_file)
        return Counter(
            record["lane"] for record in records if record["event"] == "load" and record.get("version") == version
        )

    def version(self, version: str, model: str = MODEL) -> tuple[str, str]:
        """How a version is, and why."""
        found = self.status()["models"].get(model, {"versions": {}})["versions"].get(version, {})
        return found.get("state", ""), found.get("reason", "")

    def serves(self, version: str) -> bool:
        return self.status()["models"][MODEL]["version"] == version

    def ask_line(self, x: np.ndarray, path: str = "", headers: Mapping[str, str] = {}, **parameters: Any) -> Reply:
        body, lengths = line_request(x, **parameters)
        return self.post(f"/v2/models/{MODEL}{path}/infer", body, {**lengths, **headers})

    def version_of(self, **asked: Any) -> str:
        """Which version answers, whose answer has to be right."""
        x = np.ones((1, 3), np.float32)
        return checked(self.ask_line(x, **asked), x)

    def compiles(self) -> list[int]:
        return [lane["compiles"] for lane in self.status()["lanes"]]


def line_request(x: np.ndarray, **parameters: Any) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a request."""
    tensor = wire.Tensor("FP32", x.shape, np.ascontiguousarray(x, np.float32).tobytes())
    request = wire.InferRequest(inputs={"x": tensor}, parameters={"binary_data_output": True, **parameters})
    body, length = wire.encode_request(request)
    return body, {wire.HEADER_LENGTH: str(length)}


def checked(reply: Reply, x: np.ndarray) -> str:
    """The version that a reply says it is of. Its numbers have to be that one's."""
    assert reply.status == 200, reply.body
    version = str(wire.decode_response(reply.body, reply.headers.get(wire.HEADER_LENGTH)).model_version)
    np.testing.assert_array_equal(inferred(reply).outputs["y"], VERSIONS[version].expected(x))
    return version


class Seen(NamedTuple):
    """A version's first answer under load: what had been loaded of it by then."""

    loads: Counter[str]
    cold: bool


class Load(AllTheTime):
    """Callers of an instance of the lines; every answer has to be right."""

    def __init__(self, instance: Lines, callers: int = 3) -> None:
        super().__init__(callers)
        self.counts: Counter[str] = Counter()
        self.first: dict[str, Seen] = {}
        self._instance = instance

    def wait_more(self, answers: int = 30, version: str | None = None) -> None:
        """Until so many more were given (of a version)."""
        before = self._count(version)
        wait_until(lambda: self.wrong or self._count(version) >= before + answers)

    def _count(self, version: str | None) -> int:
        return self.counts.total() if version is None else self.counts[version]

    def ask_on(self, number: int) -> None:
        rng = np.random.default_rng(number)
        shapes = itertools.cycle([(1, 3), (2, 4), (4, 16), (7, 9), (1, 16), (3, 5)])
        while not self.stopping.is_set():
            x = rng.integers(-99, 99, next(shapes)).astype(np.float32)  # exact in every version
            try:
                reply = self._instance.ask_line(x)
                version = checked(reply, x)
            except (OSError, AssertionError, http.client.HTTPException) as error:
                self.wrong.append(error)
                return
            with self.lock:
                if version not in self.first:
                    cold = bool(inferred(reply).parameters["cold"])
                    self.first[version] = Seen(self._instance.loads(version), cold)
                self.counts[version] += 1


def planned(line: Line) -> dict[str, int]:
    """How many executables each lane has of a version."""
    widest = [bucket for bucket in line.buckets if bucket["width"] == line.width[-1]]
    return {"primary": len(line.buckets), "cpu": len(widest)}
