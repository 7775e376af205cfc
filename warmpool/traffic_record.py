"""What instances leave in a store of the shapes they saw: `traffic/<model>/<instance>`, one record each.

It is not signed, so anybody who may write to the store may write one, and only an operator's command reads it: whatever
it says can make a plan fit badly, and no more. A record is read in full or not at all, and is bounded in every number.
"""

from __future__ import annotations

import time
from typing import Annotated

import msgspec

from cache.errors import CacheError, NotStored
from cache.layout import FOLDERS
from cache.records import decoded
from cache.store import Entry, Store
from warmpool.shape_sketch import CELLS_MAX, ShapeSketch

FORMAT = 1
FOLDER = "traffic"
RECORD_BYTES_MAX = 8 << 20
RECORDS_MAX = 1000  # the newest are read
EXPIRED_S = FOLDERS[FOLDER].useful_s  # by then all that a record says weighs a thousandth
METHODS_MAX = 64

_Name = Annotated[str, msgspec.Meta(max_length=64)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 33)]
_Shape = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=8)]
_Weight = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Counts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sketch as it was written: how many were seen ever, the relative error of sizes, and the weight of each shape.

    Sizes are in the order of the method's dimensions.
    """

    seen: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
    error_max: Annotated[float, msgspec.Meta(ge=0)]
    shapes: Annotated[tuple[_Shape, ...], msgspec.Meta(max_length=CELLS_MAX)]
    weights: Annotated[tuple[_Weight, ...], msgspec.Meta(max_length=CELLS_MAX)]


class MethodTraffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one method: `requests` as they came; `batches` as they ran.

    In `batches` every part of a batch is a shape with the rows of the whole batch and its own other sizes, and weighs
    its share of the rows: a batch weighs 1.
    """

    dims: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=8)]
    requests: Counts
    batches: Counts


class TrafficRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one instance saw of one model until `written_s` (seconds since the epoch), weighed as of then."""

    format: int = FORMAT
    model: _Name
    written_s: Annotated[float, msgspec.Meta(ge=0, le=1e11)]
    methods: Annotated[dict[_Name, MethodTraffic], msgspec.Meta(max_length=METHODS_MAX)]


def record_path(model: str, instance: str) -> str:
    """Where an instance's record of a model lies."""
    return f"{FOLDER}/{model}/{instance}"


def counts_of(sketch: ShapeSketch, now_s: float) -> Counts:
    """A sketch as it is written."""
    cells = sketch.cells(now_s)
    return Counts(
        seen=sketch.seen,
        error_max=sketch.error_max,
        shapes=tuple(cells),
        weights=tuple(round(weight, 6) for weight in cells.values()),
    )


def encode_record(record: TrafficRecord) -> bytes:
    """The bytes of a record."""
    return msgspec.json.encode(record)


def read_record(data: bytes) -> TrafficRecord:
    """A record out of its bytes.

    Raises:
        msgspec.MsgspecError: It is none.
    """
    if len(data) > RECORD_BYTES_MAX:
        raise msgspec.DecodeError(f"a record has at most {RECORD_BYTES_MAX} bytes, this one has more")
    record = decoded(data, TrafficRecord)
    if record.format != FORMAT:
        raise msgspec.ValidationError(f"its format is {record.format}, this release reads {FORMAT}")
    for name, method in record.methods.items():
        for counts in (method.requests, method.batches):
            if len(counts.shapes) != len(counts.weights):
                raise msgspec.ValidationError(f"{name}: {len(counts.shapes)} shapes, {len(counts.weights)} weights")
            if any(len(shape) != len(method.dims) for shape in counts.shapes):
                raise msgspec.ValidationError(f"{name}: a shape has not one size for each of {', '.join(method.dims)}")
    return record


def read_records(store: Store, model: str) -> tuple[list[TrafficRecord], dict[str, str]]:
    """The records of a model that are not expired, the newest first, and why others could not be read, by path.

    Raises:
        StoreUnavailable: The store cannot be read.
    """
    oldest_s = time.time() - EXPIRED_S
    entries = [entry for entry in store.entries(f"{FOLDER}/{model}") if entry.modified_s >= oldest_s]
    entries.sort(key=lambda entry: entry.modified_s, reverse=True)
    found: list[TrafficRecord] = []
    problems: dict[str, str] = {}
    for entry in entries[:RECORDS_MAX]:
        try:
            found.append(_read(store, entry, model))
        except NotStored:
            continue
        except (CacheError, msgspec.MsgspecError) as error:
            problems[entry.path] = str(error)
    return found, problems


def _read(store: Store, entry: Entry, model: str) -> TrafficRecord:
    record = read_record(store.get(entry.path, bytes_max=RECORD_BYTES_MAX + 1))
    if record.model != model:
        raise msgspec.ValidationError(f"it is one of model {record.model!r}")
    return record
