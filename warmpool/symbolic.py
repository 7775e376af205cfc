"""Shape expressions: what an exported program says of its output shapes, evaluated without jax.

The grammar is how `jax.export` prints a symbolic dimension: integers and names, `+`, `-`, `*`, `^` for powers, and the
functions floordiv, mod, max and min.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

POWER_BITS_MAX = 256  # far beyond any shape, and soon computed

Evaluate = Callable[[Mapping[str, int]], int]


def _power(base: int, exponent: int) -> int:
    if exponent < 0 or base.bit_length() * exponent > POWER_BITS_MAX:
        raise ValueError(f"shape expression has the power {base}^{exponent}, allowed: up to 2^{POWER_BITS_MAX}")
    return int(base**exponent)


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}


def shape_of(shape: Sequence[int | str], dims: Mapping[str, int]) -> tuple[int, ...]:
    """A concrete shape: every expression evaluated with these sizes of the named dimensions.

    Raises:
        ValueError: an expression is outside the grammar, or names a dimension that has no size.
    """
    return tuple(size if isinstance(size, int) else compiled(size)(dims) for size in shape)


@lru_cache(maxsize=4096)
def compiled(expression: str) -> Evaluate:
    """The expression as a function of the named dimensions' sizes."""
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"shape expression {expression!r} cannot be read: {error.msg}") from error
    return _evaluator(tree, expression)


def _evaluator(node: ast.expr, expression: str) -> Evaluate:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return lambda _: number
        case ast.Name(id=name):
            return lambda dims: _size(dims, name, expression)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _evaluator(operand, expression)
            return lambda dims: -inner(dims)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _BINARY:
            apply = _BINARY[type(operation)]
            first, second = _evaluator(left, expression), _evaluator(right, expression)
            return lambda dims: apply(first(dims), second(dims))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS and arguments:
            function = _FUNCTIONS[name]
            inners = [_evaluator(argument, expression) for argument in arguments]
            return lambda dims: function(*(inner(dims) for inner in inners))
    raise ValueError(f"shape expression {expression!r} has {ast.unparse(node)!r}, which is not part of the grammar")


def _size(dims: Mapping[str, int], name: str, expression: str) -> int:
    try:
        return dims[name]
    except KeyError:
        raise ValueError(f"shape expression {expression!r} names the dimension {name!r}, which has no size") from None
