"""Programs with what XLA's CPU client treats in ways of its own.

LAPACK, sorting, FFT, random numbers, narrow dtypes, loops; arguments that are dropped or donated; and, on eight virtual
devices, tensors in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DEVICES = 8
MESH = {"x": 4, "y": 2}


@dataclass(frozen=True)
class Compiling:
    """How a program is compiled: which arguments it may drop or take over, and how they are spread over `MESH`."""

    keep_unused: bool = True
    donated: tuple[int, ...] = ()
    spread: tuple[tuple[str | tuple[str, ...] | None, ...], ...] = ()


def _normal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


def _symmetric(size: int) -> Array:
    matrix = _normal(size, size)
    return matrix @ matrix.T + size * np.eye(size, dtype=np.float32)


def _functions() -> dict[str, Callable[..., Any]]:
    """Imports jax: a process that only loads must not come here."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def normal(seed):
        return jax.random.normal(jax.random.key(seed), (64,))

    def scan(w, x):
        return lax.scan(lambda carry, row: (jnp.tanh(carry @ w + row), carry.sum()), x[0], x)

    def collatz(n):
        def step(state):
            value, steps = state
            return jnp.where(value % 2 == 0, value // 2, 3 * value + 1), steps + 1

        return lax.while_loop(lambda state: state[0] > 1, step, (n, 0))

    def hungry(x):
        """Keeps every step until the end: 256 MiB for the arguments below."""
        _, steps = lax.scan(lambda carry, _: (carry * 0.5 + 1, carry), x, None, length=8192)
        return steps.max(0)

    def convolution(image, kernel):
        return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def narrow(dtype):
        return lambda x: ((x.astype(jnp.float32) @ x.astype(jnp.float32).T).astype(dtype), x * 2)

    return {
        "add": lambda x, y: x + y,
        "argsort": jnp.argsort,
        "bfloat16": lambda x: (x @ x.T, x.astype(jnp.float32).sum()),
        "cholesky": jnp.linalg.cholesky,
        "conditional": lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
        "convolution": convolution,
        "donated": lambda state, x: (state + x, (state * x).sum()),
        "donated_and_dropped": lambda unused, x, unused_too, state: (state - x, x.max()),
        "dropped": lambda unused, x, unused_too: x * 2,
        "eigh": jnp.linalg.eigh,
        "e4m3fn": narrow(jnp.float8_e4m3fn),
        "e5m2": narrow(jnp.float8_e5m2),
        "fft": lambda x: (jnp.abs(jnp.fft.fft(x)), jnp.fft.irfft(jnp.fft.rfft(x))),
        "hungry": hungry,
        "int8": lambda x: (lax.dot(x, x, preferred_element_type=jnp.int32), x > 0),
        "qr": jnp.linalg.qr,
        "random": normal,
        "scalars": lambda x, unused: x * 2,
        "scan": scan,
        "solve": jnp.linalg.solve,
        "sort": lambda x: (jnp.sort(x, axis=-1), jnp.sort(x, axis=0, descending=True)),
        "svd": lambda x: jnp.linalg.svd(x, full_matrices=False),
        "top_k": lambda x: lax.top_k(x, 5),
        "triangular_solve": lambda a, b: jax.scipy.linalg.solve_triangular(jnp.tril(a), b, lower=True),
        "while": collatz,
        "spread_both_ways": lambda x, w, b: (jnp.tanh(x @ w + b), x.sum(), w.T),
        "spread_bfloat16": lambda x: (x @ x.T, jnp.sort(x, axis=0)),
        "spread_cholesky": jnp.linalg.cholesky,
        "spread_donated": lambda unused, state, x: (state + x, (state * x).sum(0)),
        "spread_nowhere": lambda x, scalar: x * scalar,
    }


ARGUMENTS: dict[str, tuple[Array, ...]] = {
    "add": (np.arange(1024, dtype=np.float32), np.full(1024, 0.5, np.float32)),
    "argsort": (_normal(8, 100),),
    "bfloat16": (_normal(16, 32, dtype=ml_dtypes.bfloat16),),
    "cholesky": (_symmetric(16),),
    "conditional": (_normal(50),),
    "convolution": (_normal(2, 8, 8, 3), _normal(3, 3, 3, 4)),
    "donated": (_normal(1024), _normal(1024) + 1),
    "donated_and_dropped": (_normal(3), _normal(64), _normal(2, 2), _normal(64) * 3),
    "dropped": (_normal(3), _normal(40), np.zeros(2, np.int8)),
    "e4m3fn": (_normal(8, 16, dtype=ml_dtypes.float8_e4m3fn),),
    "e5m2": (_normal(8, 16, dtype=ml_dtypes.float8_e5m2),),
    "eigh": (_symmetric(12),),
    "fft": (_normal(64),),
    "hungry": (np.ones(8192, np.float32),),
    "int8": (np.arange(-32, 32, dtype=np.int8).reshape(8, 8),),
    "qr": (_normal(12, 6),),
    "random": (np.array(7, np.int32),),
    "scalars": (np.array(1.5, np.float32), np.zeros(3, np.int32)),
    "scan": (_normal(8, 8), _normal(20, 8)),
    "solve": (_symmetric(10), _normal(10, 3)),
    "sort": (_normal(7, 33),),
    "svd": (_normal(10, 6),),
    "top_k": (_normal(4, 40),),
    "triangular_solve": (_symmetric(9), _normal(9, 2)),
    "while": (np.array(27, np.int32),),
    "spread_both_ways": (_normal(16, 32), _normal(32, 24), _normal(24)),
    "spread_bfloat16": (_normal(8, 16, dtype=ml_dtypes.bfloat16),),
    "spread_cholesky": (np.stack([_symmetric(size=6) * (1 + number) for number in range(8)]),),
    "spread_donated": (_normal(5), _normal(32, 12), _normal(32, 12) * 2),
    "spread_nowhere": (_normal(6), np.array(1.5, np.float32)),
}
COMPILING = {
    "donated": Compiling(donated=(0,)),
    "donated_and_dropped": Compiling(keep_unused=False, donated=(3,)),
    "dropped": Compiling(keep_unused=False),
    "spread_both_ways": Compiling(spread=(("x", None), (None, "y"), ("y",))),
    "spread_bfloat16": Compiling(spread=(("y", "x"),)),
    "spread_cholesky": Compiling(spread=(("x",),)),
    "spread_donated": Compiling(keep_unused=False, donated=(1,), spread=((), (("x", "y"), None), ("y", None))),
    "spread_nowhere": Compiling(spread=((), ())),
}
SPREAD = sorted(name for name, how in COMPILING.items() if how.spread)
NAMES = sorted(set(ARGUMENTS) - set(SPREAD))


def lowered(name: str, *, mesh: Any = None) -> Any:
    """As publishing lowers it; on a mesh of our own if none is given."""
    import jax

    how = COMPILING.get(name, Compiling())
    specs = [jax.ShapeDtypeStruct(argument.shape, argument.dtype) for argument in ARGUMENTS[name]]
    options: dict[str, Any] = {"keep_unused": how.keep_unused, "donate_argnums": how.donated}
    if how.spread:
        mesh = mesh or mesh_of(jax.devices())
        named = [jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*one)) for one in how.spread]
        options["in_shardings"] = tuple(named)
    return jax.jit(_functions()[name], **options).lower(*specs)


def mesh_of(devices: Sequence[Any]) -> Any:
    """A mesh of the devices in this order."""
    import jax

    return jax.sharding.Mesh(np.array(devices).reshape(*MESH.values()), tuple(MESH))


def compiled(name: str) -> Any:
    """A fresh compile, as publishing makes them."""
    return lowered(name).compile()


def answers(name: str, executable: Any) -> list[Array]:
    """What the compile itself computes, flat."""
    import jax

    return [np.asarray(leaf) for leaf in jax.tree.leaves(executable(*ARGUMENTS[name]))]


def write_arrays(path: Path, arrays: Sequence[Array]) -> None:
    """As text, every bit of it: numpy's own files know no bfloat16."""
    path.write_text("\n".join(described(array) for array in arrays))


def described(array: Array) -> str:
    """dtype, shape and bytes: equal for two arrays if and only if they are the same to the bit."""
    return f"{array.dtype.name} {array.shape} {array.tobytes().hex()}"
