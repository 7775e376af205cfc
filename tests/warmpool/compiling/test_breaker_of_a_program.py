"""A program of which three executables failed: no other of it is tried until somebody resets that. Real processes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from cache.failures import FAILED_MAX
from tests.instance_process import wait_until
from tests.warmpool.command import warmpool
from tests.warmpool.compiling.place import MADE_S_MAX, OTHER_MACHINE, Place, compiling
from tests.warmpool.compiling.test_moving_needs import two_cores
from tests.warmpool.publishing.toy import Heard
from warmpool.publishing.publish import Options, publish

SMALLEST, BETWEEN, LARGEST = 1, range(2, 9), 9
NAMES = [f"batch={size},seq=4" for size in BETWEEN]


@pytest.mark.slow
def test_of_a_program_that_failed_three_times_no_other_executable_is_tried_until_that_is_reset_by_hand(tmp_path):
    (tmp_path / "toy").mkdir()
    with two_cores(), contextlib.ExitStack() as stack:  # so few compile at a time that some are left
        place: Any = Place(tmp_path, stack)
        file = place.toy.model_file(2.0, sizes=(SMALLEST, *BETWEEN, LARGEST))
        file.write_text(file.read_text().replace('"batch", max=4', f'"batch", max={LARGEST}'))
        publish(Options(model_file=file, store=place.toy.settings, version="1"), Heard())
        place.fates.write({f"compile_bucket {name}": "raise" for name in NAMES})
        instance = place.start(**OTHER_MACHINE)

        def failures() -> list[str]:
            found = compiling(instance)["failures"]
            return [found[title] for name in NAMES if (title := f"toy:predict {name} of 1") in found]

        wait_until(lambda: len(failures()) == len(NAMES), MADE_S_MAX)
        met = place.fates.met()
        untried = [reason for reason in failures() if "it was not tried" in reason]
        assert sum(met[name] for name in NAMES) == len(NAMES) - len(untried) >= FAILED_MAX  # some were begun by then
        assert untried
        assert all("others of its program failed" in reason and "no such thing" in reason for reason in untried)

        place.fates.write({})
        flags = ("--store", str(place.toy.store), "--signing-key", str(place.toy.folder / "key"))
        filled = warmpool("cache", "fill", *flags, **place.fates.environment, **OTHER_MACHINE)
        assert filled.returncode == 1
        assert place.fates.met() == met
        filled = warmpool("cache", "fill", *flags, "--retry-failed", **place.fates.environment, **OTHER_MACHINE)
        assert filled.returncode == 0, filled.stderr
        assert {name: place.fates.met()[name] - met[name] for name in NAMES} == dict.fromkeys(NAMES, 1)
        made = {f"toy:predict {name}" for name in NAMES}
        wait_until(lambda: made <= instance.lane("primary")["executables"].keys(), MADE_S_MAX)
