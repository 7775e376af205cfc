"""Outputs at exact shapes, in files: children write them, and others compare with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmpool.manifest import MethodSpec, bucket_name
from warmpool.publishing.subject import Row, Tensors


class References:
    """Outputs at exact shapes, by point and value set.

    Args:
        paths: Point's name to the file with its outputs.
        spec: The method that they are of.
    """

    def __init__(self, paths: Mapping[str, str], spec: MethodSpec) -> None:
        self._paths = paths
        self._count = len(spec.outputs)
        self._read: dict[str, Any] = {}

    def of(self, row: Row) -> Tensors:
        """What a row's answer is compared with."""
        name = bucket_name(row.point)
        if name not in self._read:
            with np.load(self._paths[name], allow_pickle=False) as stored:
                self._read[name] = {key: stored[key] for key in stored.files}
        return [_decoded(self._read[name], f"{row.variant}.{index}") for index in range(self._count)]


def write_references(path: Path, results: Sequence[Tensors]) -> None:
    """Write the outputs of every value set of a point."""
    arrays: dict[str, NDArray[Any]] = {}
    for variant, outputs in enumerate(results):
        for index, output in enumerate(outputs):
            # npz knows no bfloat16: bytes and the dtype's name are stored instead.
            arrays[f"{variant}.{index}"] = np.frombuffer(np.ascontiguousarray(output).tobytes(), np.uint8)
            arrays[f"{variant}.{index}.dtype"] = np.array(output.dtype.name)
            arrays[f"{variant}.{index}.shape"] = np.array(output.shape, np.int64)
    np.savez(path, allow_pickle=False, **arrays)


def _decoded(stored: dict[str, NDArray[Any]], key: str) -> NDArray[Any]:
    dtype, shape = str(stored[f"{key}.dtype"]), stored[f"{key}.shape"].tolist()
    return np.frombuffer(stored[key].tobytes(), dtype).reshape(shape)
