"""The weights blob gives every tensor back, mapped and aligned."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from cache.errors import Damaged
from warmpool.manifest import ALIGN_BYTES
from warmpool.weights import digest_file, map_weights, write_weights

DTYPES = ["bool", "int8", "uint16", "int32", "float16", "float32", ml_dtypes.bfloat16]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)
TENSORS = st.lists(
    st.tuples(st.sampled_from(DTYPES), SHAPES, st.integers(0, 2**32)).map(
        lambda drawn: np.random.default_rng(drawn[2]).integers(0, 2, drawn[1]).astype(drawn[0])
    ),
    max_size=6,
)


@given(tensors=TENSORS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_what_is_mapped(tensors: list[NDArray[Any]], tmp_path: Path) -> None:
    path = tmp_path / "weights"
    spec = write_weights(path, [(f"layers/{index}", tensor) for index, tensor in enumerate(tensors)])
    mapped = map_weights(path, spec)
    assert [tensor.name for tensor in spec.tensors] == [f"layers/{index}" for index in range(len(tensors))]
    assert len(mapped) == len(tensors)
    for wanted, found, described in zip(tensors, mapped, spec.tensors, strict=True):
        assert (
            (found.dtype, found.shape) == (wanted.dtype, wanted.shape) == (np.dtype(described.dtype), described.shape)
        )
        assert found.tobytes() == wanted.tobytes()
        assert described.offset % ALIGN_BYTES == 0
        assert found.size == 0 or found.ctypes.data % ALIGN_BYTES == 0
    assert spec.size_bytes == path.stat().st_size
    assert spec.digest == hashlib.sha256(path.read_bytes()).hexdigest() == digest_file(path)


def test_a_mapped_tensor_is_read_only(tmp_path: Path) -> None:
    spec = write_weights(tmp_path / "weights", [("w", np.zeros(3, np.float32))])
    (mapped,) = map_weights(tmp_path / "weights", spec)
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1.0


def test_a_transposed_tensor_is_stored_in_its_own_order(tmp_path: Path) -> None:
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3).T
    spec = write_weights(tmp_path / "weights", [("w", tensor)])
    (mapped,) = map_weights(tmp_path / "weights", spec)
    np.testing.assert_array_equal(mapped, tensor)


def test_a_blob_of_another_size_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    spec = write_weights(path, [("w", np.zeros(64, np.float32))])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Damaged, match="255 bytes long instead of 256"):
        map_weights(path, spec)


def test_the_same_tensors_have_the_same_digest_and_others_have_not(tmp_path: Path) -> None:
    first = write_weights(tmp_path / "first", [("w", np.zeros(3, np.float32))])
    again = write_weights(tmp_path / "again", [("w", np.zeros(3, np.float32))])
    other = write_weights(tmp_path / "other", [("w", np.ones(3, np.float32))])
    assert first == again
    assert first.digest != other.digest
