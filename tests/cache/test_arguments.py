"""Which part of a tensor each device has, and what an executable takes as its arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.arguments import Argument, Call, Placement, parts_of
from cache.artifact import Calling, TensorType
from cache.errors import Refused

FLOATS = TensorType("float32", (4,))
WHOLE = (slice(0, 4),)
PLACED = Placement(FLOATS, (WHOLE,))


def call(*, count=2, kept=(0, 1), donated=(), devices=1):
    calling = Calling(arguments=(FLOATS,) * count, results=(), kept=kept, donated=donated, devices=devices)
    return Call(calling, dict.fromkeys(kept, PLACED))


def refused(function, *arguments):
    with pytest.raises(Refused) as caught:
        function(*arguments)
    return str(caught.value)


@st.composite
def tilings(draw):
    """A shape, into how many parts each dimension is divided, how often each is repeated, an order of the devices."""
    tiles = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    shape = [count * draw(st.integers(1, 3)) for count in tiles]
    repeated = draw(st.integers(1, 3))
    order = draw(st.permutations(range(math.prod(tiles) * repeated)))
    return shape, tiles, repeated, order


@given(tilings())
def test_every_device_has_the_part_of_its_place_in_the_order(tiling):
    shape, tiles, repeated, order = tiling
    parts = parts_of(shape, [*tiles, repeated], order, len(order))
    numbered = np.arange(math.prod(shape)).reshape(shape)
    for place, device in enumerate(order):
        expected = numbered
        for axis, number in enumerate(np.unravel_index(place // repeated, tiles)):
            expected = np.split(expected, tiles[axis], axis)[number]
        np.testing.assert_array_equal(numbered[parts[device]], expected)


@given(tilings())
def test_parts_cover_a_tensor_equally_often(tiling):
    shape, tiles, repeated, order = tiling
    seen = np.zeros(shape, int)
    for part in parts_of(shape, [*tiles, repeated] if repeated > 1 else tiles, order, len(order)):
        seen[part] += 1
    assert (seen == repeated).all()


@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_without_tiles_every_device_has_all_of_it(shape):
    assert parts_of(shape, [], [0], 4) == (tuple(slice(0, size) for size in shape),) * 4


@pytest.mark.parametrize(
    ("shape", "tiles", "order", "devices", "word"),
    [
        ((5,), [2], [0, 1], 2, "cannot be divided"),
        ((4,), [2, 2], [0, 1, 2], 4, "are not one for each of 4"),
        ((4,), [2], [0, 0], 2, "are not one for each of 2"),
        ((4,), [2], [0, 1, 2, 3], 4, "are not one for each of 4"),
        ((4, 4), [2], [0, 1], 2, "cannot be divided"),
    ],
)
def test_what_is_no_equal_division_is_refused(shape, tiles, order, devices, word):
    assert word in refused(parts_of, shape, tiles, order, devices)


def test_an_executable_gets_what_it_kept_in_its_order():
    assert call(count=4, kept=(1, 3)).buffers(["a", "b", "c", "d"]) == ["b", "d"]


def test_a_donated_argument_is_used_up_and_another_is_not():
    donating = call(donated=(1,))
    kept, donated = Argument(PLACED, "kept", donated=False), Argument(PLACED, "donated", donated=True)
    assert donating.buffers([kept, donated]) == ["kept", "donated"]
    assert "argument 1 was donated to an earlier run" in refused(donating.buffers, [kept, donated])
    assert donating.buffers([kept, Argument(PLACED, "again", donated=True)]) == ["kept", "again"]


def test_what_is_refused_uses_nothing_up():
    donating = call(donated=(0, 1))
    one, other = (Argument(PLACED, name, donated=True) for name in ("one", "other"))
    assert "argument 1 is donated" in refused(donating.buffers, [one, "plain"])
    assert donating.buffers([one, other]) == ["one", "other"]


def test_the_same_argument_is_not_donated_twice_in_one_run():
    one = Argument(PLACED, "one", donated=True)
    assert "argument 1 was donated" in refused(call(donated=(0, 1)).buffers, [one, one])


def test_a_plain_buffer_is_taken_where_nothing_can_go_wrong_with_it():
    plain = Argument(PLACED, "placed", donated=False)
    assert call(donated=(1,)).buffers(["plain", Argument(PLACED, "x", donated=True)]) == ["plain", "x"]
    assert "is spread over 8 devices" in refused(call(devices=8).buffers, ["plain", plain])


def test_an_argument_of_another_placement_is_refused():
    elsewhere = Argument(Placement(FLOATS, ((slice(0, 2),), (slice(2, 4),))), "x", donated=False)
    other = Argument(Placement(TensorType("int32", (4,)), (WHOLE,)), "x", donated=False)
    for argument in (elsewhere, other):
        assert "argument 1 was placed as another argument" in refused(call().buffers, ["plain", argument])


def test_a_dropped_argument_is_placed_nowhere_but_has_to_be_of_its_type():
    dropping = call(kept=(1,))
    assert dropping.placement(0, "float32", (4,)) == Placement(FLOATS, ())
    assert dropping.placement(1, "float32", (4,)) == PLACED
    assert "argument 0 is int32[4], the executable takes float32[4]" in refused(dropping.placement, 0, "int32", (4,))


@pytest.mark.parametrize("index", [-1, 2])
def test_there_is_no_argument_beyond_the_last(index):
    assert f"there is no argument {index}" in refused(call().placement, index, "float32", (4,))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_arguments_have_to_be_there_as_the_program_has(count):
    assert f"takes 2 arguments, not {count}" in refused(call().buffers, ["x"] * count)
