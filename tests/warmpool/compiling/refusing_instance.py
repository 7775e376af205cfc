"""`warmpool`, as a process for which a canary is refused for long as soon as there is the file REFUSED_FOR_LONG."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from warmpool import cli
from warmpool.rollout import controller
from warmpool.rollout.controller import Rollouts
from warmpool.rollout.counting import Watched

refused_for_long = Rollouts._refused_for_long


def refused_as_told(self: Rollouts, name: str, watched: Watched) -> str:
    controller.REFUSED_S_MAX = 0.0 if Path(os.environ["REFUSED_FOR_LONG"]).exists() else math.inf
    return refused_for_long(self, name, watched)


if __name__ == "__main__":
    Rollouts._refused_for_long = refused_as_told  # type: ignore[method-assign]
    sys.exit(cli.main())
