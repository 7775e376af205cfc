"""Both ways of loading an executable are run, on real artifacts; what they cost is for the benchmark to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_one_round_loads_both_ways_and_they_answer_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.artifact_load", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in {0, 3}, done.stderr[-2000:]  # 3: on a busy machine one round may miss the target
    for size in ("small", "large"):
        assert f"{size}: artifact over deserialize_and_load" in done.stdout
