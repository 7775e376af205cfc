"""A program's identity is its meaning, and its stored bytes verify themselves."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from cache.errors import Damaged, Foreign
from warmpool.publishing.program import Program, program_of, read_program, without_locations


def doubled() -> Program:
    def program(x: jax.Array) -> jax.Array:
        return x * 2

    return program_of(jax.export.export(jax.jit(program))(jax.ShapeDtypeStruct((3,), jnp.float32)))


def test_a_stored_program_is_read_back() -> None:
    program = doubled()
    found = read_program(program.stored, program.digest).call(np.ones(3, np.float32))
    np.testing.assert_array_equal(found, [2, 2, 2])


def test_a_program_with_a_changed_byte_is_damaged() -> None:
    program = doubled()
    changed = bytearray(program.stored)
    changed[len(changed) // 2] ^= 1
    with pytest.raises(Damaged):
        read_program(bytes(changed), program.digest)


def test_a_program_under_the_digest_of_another_is_foreign() -> None:
    with pytest.raises(Foreign):
        read_program(doubled().stored, "0" * 64)


def test_locations_are_cut_from_program_text_and_nothing_else() -> None:
    text = (
        '#loc = loc(unknown)\n#loc1 = loc("/home/a (b)/m.py":3:1)\n'
        'func @main(%arg0: tensor<f32> {name = "a loc(b"} loc("x"(#loc1))) -> tensor<f32> {\n'
        '  %0 = op %arg0 {message = "say \\"loc(\\" (once"} : (tensor<f32>) -> tensor<f32> loc(callsite(#a at #b))\n'
        "} loc(#loc)\n"
    )
    assert without_locations(text) == (
        'func @main(%arg0: tensor<f32> {name = "a loc(b"}) -> tensor<f32> {\n'
        '  %0 = op %arg0 {message = "say \\"loc(\\" (once"} : (tensor<f32>) -> tensor<f32>\n'
        "}\n"
    )
