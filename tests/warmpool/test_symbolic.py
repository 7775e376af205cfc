"""Shape expressions mean here what they mean to `jax.export`, which wrote them."""

from __future__ import annotations

import operator
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export
from jax.core import max_dim, min_dim

from warmpool.symbolic import compiled, shape_of

NAMES = ("a", "b", "seq")
DIMS = dict(zip(NAMES, export.symbolic_shape(", ".join(NAMES)), strict=True))
OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": max,
    "min": min,
}
SYMBOLIC = OPERATIONS | {"max": max_dim, "min": min_dim}

# A tree is a name, a number, or (operation, tree, tree); divisors are names, which are at least 1, or numbers.
leaves = st.sampled_from(NAMES) | st.integers(-9, 9)
divisors = st.sampled_from(NAMES) | st.integers(1, 9)


def grown(children):
    return (
        st.tuples(st.sampled_from(["+", "-", "*", "max", "min"]), children, children)
        | st.tuples(st.sampled_from(["//", "%"]), children, divisors)
        | st.tuples(st.just("*"), children, children)
    )


trees = st.recursive(leaves, grown, max_leaves=6)
sizes = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(1, 50)))


def evaluated(tree, values, operations):
    if isinstance(tree, tuple):
        operation, *branches = tree
        return operations[operation](*(evaluated(branch, values, operations) for branch in branches))
    return values[tree] if isinstance(tree, str) else tree


@given(trees, sizes)
def test_an_expression_of_jax_has_the_size_that_jax_gives_it(tree, values):
    expression = evaluated(tree, DIMS, SYMBOLIC)
    wanted = evaluated(tree, values, OPERATIONS)
    assert shape_of([str(expression)], values) == (wanted,)
    if not isinstance(expression, int):
        assert int(expression._evaluate(values)) == wanted


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        ("7", 7),
        ("a", 3),
        (" a ", 3),
        ("2*seq + 1", 21),
        ("-a + seq", 7),
        ("- a", -3),
        ("a^2", 9),
        ("-a^2", -9),
        ("2*a^2*seq - 1", 179),
        ("floordiv(seq + 1, 2)", 5),
        ("floordiv(-seq, a)", -4),
        ("mod(-1, a)", 2),
        ("max(a, seq)", 10),
        ("min(seq, 4, a)", 3),
        ("max(0, min(a, seq) - 5)", 0),
        ("(a + 1)*(seq - 1)", 36),
    ],
)
def test_the_grammar(expression, size):
    assert compiled(expression)({"a": 3, "seq": 10}) == size


def test_a_shape_mixes_numbers_names_and_expressions():
    assert shape_of((4, "batch", "2*seq"), {"batch": 0, "seq": 5}) == (4, 0, 10)
    assert shape_of((), {}) == ()


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "a +",
        "a b",
        "1.5",
        "True",
        "'a'",
        "a / 2",
        "a // 2",
        "a % 2",
        "a.b",
        "a[0]",
        "f(a)",
        "max()",
        "max(a, key=a)",
        "max(*a)",
        "lambda: 1",
        "a if a else b",
        "a < 3",
        "not a",
        "(a, b)",
        "__import__('os')",
        "a\0",
        "a := 3",
        "(" * 300 + "a" + ")" * 300,
    ],
)
def test_what_is_outside_the_grammar_is_refused_by_name(expression):
    with pytest.raises(ValueError, match=r"^shape expression "):
        compiled(expression)


def test_a_dimension_without_a_size_is_named():
    with pytest.raises(ValueError, match=r"'2\*seq' names the dimension 'seq', which has no size"):
        shape_of(("2*seq",), {"batch": 1})


def test_expressions_are_evaluated_without_jax():
    code = "import sys; from warmpool.symbolic import shape_of; assert shape_of(('max(a, 2)',), {'a': 1}) == (2,); "
    code += "assert not {'jax', 'jaxlib', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("expression", ["9^9^9^9", "2^257", "2^(0 - 1)", "((a^200)^200)^200"])
def test_a_power_that_no_shape_has_is_refused_before_it_is_computed(expression):
    with pytest.raises(ValueError, match="shape expression has the power"):
        shape_of([expression], {"a": 3})
    assert shape_of(["2^31", "a^2", "0^0"], {"a": 3}) == (2**31, 9, 1)
