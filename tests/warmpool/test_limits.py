"""A request that a method can use always fits, however its numbers are written; what is far beyond does not."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from tests.warmpool.served import doubling, method, tensor
from warmpool import wire
from warmpool.limits import NUMBER_BYTES_MAX, REST_BYTES_MAX, request_bytes_max

CEILING = 1 << 40
LONGEST = -2.2250738585072014e-308
PAIR = method(
    [tensor("ids", "int32", "batch", "seq"), tensor("weight", "float64", "batch", 3), tensor("scale", "float32")],
    [tensor("y", "float32", "batch")],
)


def test_elements_are_those_of_all_inputs_at_their_maxima():
    assert doubling().elements_max == 100
    assert PAIR.elements_max == 100 * 16 + 100 * 3 + 1
    assert method([], []).elements_max == 0


def test_the_largest_of_several_methods_counts_and_the_ceiling_bounds_it():
    both = request_bytes_max([doubling(), PAIR], CEILING)
    assert both == request_bytes_max([PAIR], CEILING) > request_bytes_max([doubling()], CEILING)
    assert request_bytes_max([doubling(), PAIR], 1000) == 1000
    assert request_bytes_max([], CEILING) == REST_BYTES_MAX


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
def test_the_largest_request_fits_in_every_form(indent):
    """A whole batch of the longest doubles, one number a row, as people print JSON."""
    served = method([tensor("x", "float64", "batch", 1)], [tensor("y", "float64", "batch")])
    rows = np.full((100, 1), LONGEST)
    flat = {"name": "x", "datatype": "FP64", "shape": [100, 1], "data": rows.ravel().tolist()}
    forms = [{"inputs": [flat]}, {"inputs": {"x": rows.tolist()}}, {"instances": [{"x": row} for row in rows.tolist()]}]
    limit = request_bytes_max([served], CEILING)
    assert len(str(LONGEST)) * 2 < NUMBER_BYTES_MAX
    for form in forms:
        assert len(json.dumps(form, indent=indent)) < limit


def test_the_largest_request_fits_as_bytes():
    given = {
        "ids": wire.Tensor("INT32", (100, 16), bytes(6400)),
        "weight": wire.Tensor("FP64", (100, 3), bytes(2400)),
        "scale": wire.Tensor("FP32", (), struct.pack("<f", 1)),
    }
    body, _ = wire.encode_request(wire.InferRequest(inputs=given, id="i" * 1000))
    assert len(body) < request_bytes_max([PAIR], CEILING)
