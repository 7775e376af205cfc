"""`python -m benchmarks`: run benchmarks, print their tables, keep their raw results."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console

from benchmarks.figures import Report, show
from benchmarks.stores import Folders
from warmpool.publishing.progress import shown_on

ROOT = Path(__file__).resolve().parents[1]
ROUNDS_MAX = 1000
COLUMNS = 140  # of tables that go to a file


class Benchmark(NamedTuple):
    """A module with a `run`; the lines of progress it says before the rounds and in each; its rounds at most."""

    module: str
    before: int
    each: int
    rounds_max: int = ROUNDS_MAX


BENCHMARKS = {
    "cold-start": Benchmark("benchmarks.cold_start", 1, 1),
    "container-start": Benchmark("benchmarks.container_start", 1, 1),
    "latency": Benchmark("benchmarks.latency", 0, 2),
    "lane-restart": Benchmark("benchmarks.lane_restart", 0, 1),
    "rollback": Benchmark("benchmarks.rollback", 0, 2),
    "stale-store": Benchmark("benchmarks.stale_store", 0, 1, rounds_max=5),
    "churn": Benchmark("benchmarks.churn", 0, 1),  # a minute, and 25,000 requests, each
    "artifact-load": Benchmark("benchmarks.artifact_load", 0, 1),
    "store-lookup": Benchmark("benchmarks.store_lookup", 0, 1),
    "gcs-latency": Benchmark("benchmarks.gcs_latency", 0, 1),
    "many-shapes": Benchmark("benchmarks.many_shapes", 0, 1, rounds_max=3),  # compiles for half a minute in each
    "throughput": Benchmark("benchmarks.throughput", 0, 6),
    "simulate": Benchmark("benchmarks.simulate", 49, 7, rounds_max=3),  # seeds; settings are sought for minutes before
    "scheduling": Benchmark("benchmarks.scheduling", 0, 1),
}
PACKAGES = ("jax", "jaxlib", "fastapi", "uvicorn", "numpy")


def number_of_rounds(text: str) -> int:
    """A number of rounds."""
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if not 1 <= number <= ROUNDS_MAX:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 1 to {ROUNDS_MAX}")
    return number


def folder(text: str) -> Path:
    """A folder that is there."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a folder that is there")
    return Path(text).absolute()


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what warmpool promises, each figure against its target; every answer is checked.",
    )
    parser.add_argument(
        "which", nargs="?", choices=[*BENCHMARKS, "all"], default="all", help="which benchmark (%(default)s)"
    )
    parser.add_argument("--rounds", type=number_of_rounds, default=7, help="how often each is repeated (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON instead of tables")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="where raw results go")
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".store-bench", help="stores, the peer's cache and logs, used again"
    )
    parser.add_argument(
        "--traces",
        type=folder,
        help="folder with recorded traffic for simulate (azure_llm_2023_code.csv, azure_llm_2023_conv.csv and "
        "mooncake_conversation.csv); without it traffic is generated",
    )
    return parser.parse_args(arguments)


def machine() -> dict[str, Any]:
    """What the numbers depend on beside the code."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def keep(folder: Path, name: str, report: Report, rounds: int) -> Path:
    """Write a raw result; where it lies."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}.json"
    document = {
        "benchmark": name,
        "rounds": rounds,
        "machine": machine(),
        "figures": [figure.document() for figure in report.figures],
        "raw": report.raw,
    }
    path.write_bytes(msgspec.json.encode(document))
    for picture, svg in report.pictures.items():
        path.with_name(f"{path.stem}-{picture}.svg").write_text(svg, encoding="utf-8")
    return path


def all_apart(options: argparse.Namespace) -> int:
    """Every benchmark in a process of its own: one has jax in it, another must not. The worst of their statuses."""
    given = ["--rounds", str(options.rounds), "--out", str(options.out), "--work", str(options.work)]
    given += ["--traces", str(options.traces)] if options.traces else []
    documents: dict[str, Any] = {}
    worst = 0
    for name in BENCHMARKS:
        command = [sys.executable, "-m", "benchmarks", name, *given]
        if options.json:
            done = subprocess.run([*command, "--json"], cwd=ROOT, stdout=subprocess.PIPE, check=False)
            documents |= msgspec.json.decode(done.stdout or b"{}")
        else:
            done = subprocess.run(command, cwd=ROOT, check=False)
        worst = max(worst, done.returncode, key=abs)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(documents)).decode())
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all targets are met, 3 when one is missed; what goes wrong is raised."""
    options = read_options(arguments)
    if options.which == "all":
        return all_apart(options)
    os.chdir(ROOT)
    name, benchmark = options.which, BENCHMARKS[options.which]
    rounds = min(options.rounds, benchmark.rounds_max)
    with shown_on(sys.stderr) as progress:
        progress.expect(benchmark.before + benchmark.each * rounds)
        run = importlib.import_module(benchmark.module).run
        report: Report = run(Folders(options.work.absolute(), options.traces), rounds, progress.step)
    keep(options.out, name, report, rounds)
    if options.json:
        document = {name: [figure.document() for figure in report.figures]}
        print(msgspec.json.format(msgspec.json.encode(document)).decode())
    else:
        show(Console(highlight=False, width=None if sys.stdout.isatty() else COLUMNS), report)
        print(f"raw results are in {options.out}")
    return 3 if any(figure.verdict == "missed" for figure in report.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
