"""Arrivals: when requests came and how long they were, as others recorded it, from a folder that the caller names.

The files are those of public traces (see `FILES`); none of them is part of this project. They are language model
traffic, so lengths are tokens of prompts: `Arrivals.within` rescales them to a model's range.
"""

from __future__ import annotations

import csv
import datetime as dt
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

MINUTES_MAX = 24 * 60
LENGTH_MAX = 10_000_000
ROWS_MAX = 10_000_000
CLIPPED = 0.01  # the share of lengths that rescaling may clip


class TraceError(ValueError):
    """A trace cannot be read; the message names file, line and field, what came and what is allowed."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When requests arrive, in seconds from the first, ascending, and how long each is; `done` is what was changed."""

    name: str
    at_s: tuple[float, ...]
    lengths: tuple[int, ...]
    done: str = ""

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def span_s(self) -> float:
        return self.at_s[-1]

    def within(self, longest: int) -> Arrivals:
        """Lengths divided so that all but one in a hundred fit, rounded up; the rest becomes `longest`."""
        reach = float(np.quantile(self.lengths, 1 - CLIPPED))
        divisor = max(1.0, reach / longest)
        lengths = tuple(min(longest, max(1, math.ceil(length / divisor))) for length in self.lengths)
        clipped = sum(length > divisor * longest for length in self.lengths) / len(self)
        done = f"{self.done}, lengths / {divisor:.1f} and clipped at {longest} ({clipped:.1%})"
        return replace(self, lengths=lengths, done=done)

    def faster(self, factor: float) -> Arrivals:
        """The same arrivals in less time; less than 1 is slower."""
        return replace(
            self, at_s=tuple(at_s / factor for at_s in self.at_s), done=f"{self.done}, {factor:.3g} times as fast"
        )

    def halves(self) -> tuple[Arrivals, Arrivals]:
        """The first half of the requests and the second, the latter from time 0 on."""
        middle = len(self) // 2
        first = replace(self, at_s=self.at_s[:middle], lengths=self.lengths[:middle])
        start_s = self.at_s[middle]
        rest = tuple(at_s - start_s for at_s in self.at_s[middle:])
        return first, replace(self, at_s=rest, lengths=self.lengths[middle:])


def read_trace(folder: Path, name: str, seed: int = 0) -> Arrivals:
    """A trace of `FILES`.

    Args:
        folder: Where the files lie.
        name: Which.
        seed: Of what is drawn: times within the steps that a trace was rounded to.

    Raises:
        TraceError: It is not there, or a line is not as it should be.
    """
    if name not in FILES:
        raise TraceError(f"the trace is {name!r}, allowed: {', '.join(FILES)}")
    file = folder / f"{name}.csv"
    source = FILES[name]
    rows = list(_rows(file, source))
    at_s = [source.seconds(row[source.time]) for row in rows]
    lengths = tuple(int(row[source.length]) for row in rows)
    order = sorted(range(len(rows)), key=at_s.__getitem__)
    done = f"{len(rows)} requests"
    if source.step_s:
        generator = random.Random(seed)
        at_s = [value + generator.uniform(0.0, source.step_s) for value in at_s]
        order = sorted(range(len(rows)), key=at_s.__getitem__)
        done += f", times spread over the {source.step_s:g} s that they were rounded to (seed {seed})"
    first_s = at_s[order[0]]
    return Arrivals(
        name, tuple(at_s[place] - first_s for place in order), tuple(lengths[place] for place in order), done
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """Names of the columns, how a time is read, and the step that times were rounded to."""

    time: str
    length: str
    seconds: Callable[[str], float]
    step_s: float = 0.0


def _utc_s(text: str) -> float:
    """2023-11-16 18:17:03.9799600, to a tenth of a microsecond: more than `fromisoformat` takes."""
    whole, _, fraction = text.partition(".")
    moment = dt.datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=dt.UTC)
    if fraction and not (fraction.isascii() and fraction.isdecimal()):
        raise ValueError(fraction)
    return moment.timestamp() + float(f"0.{fraction or 0}")


def _ms(text: str) -> float:
    value = float(text)
    if not 0 <= value <= MINUTES_MAX * 60e3:
        raise ValueError(text)
    return value / 1e3


_AZURE = ("TIMESTAMP", "ContextTokens", _utc_s)
_MOONCAKE = ("timestamp_ms", "input_length", _ms)
FILES = {
    "azure_llm_2023_code": _Source(*_AZURE),
    "azure_llm_2023_conv": _Source(*_AZURE),
    "mooncake_conversation": _Source(*_MOONCAKE, step_s=3.0),
    "mooncake_synthetic": _Source(*_MOONCAKE),
}


def _rows(file: Path, source: _Source) -> Iterator[dict[str, str]]:
    """The lines of a file, each checked."""
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            found = reader.fieldnames or []
            if missing := [name for name in (source.time, source.length) if name not in found]:
                raise TraceError(f"{file}, line 1: the columns are {_shown(found)}, {' and '.join(missing)} missing")
            count = 0
            for row in reader:
                count += 1
                if count > ROWS_MAX:
                    raise TraceError(f"{file} has more than {ROWS_MAX} requests")
                _check(row, source, f"{file}, line {reader.line_num}")
                yield row
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{file} is no CSV in UTF-8: {error}") from None
    if count < 2:
        raise TraceError(f"{file} has {count} requests, allowed: 2 or more")


def _check(row: dict[str, str], source: _Source, where: str) -> None:
    try:
        source.seconds(row[source.time] or "")
    except ValueError:
        raise TraceError(f"{where}: {source.time} is {row[source.time]!r}, allowed: a time") from None
    length = row[source.length] or ""
    if not (length.isascii() and length.isdecimal() and 0 < int(length[:9]) <= LENGTH_MAX and len(length) < 9):
        raise TraceError(f"{where}: {source.length} is {row[source.length]!r}, allowed: 1 to {LENGTH_MAX}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
