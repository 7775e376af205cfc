"""What an author's function becomes, and what is said where it cannot become a program."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import io_callback

from warmpool.errors import DeclarationError
from warmpool.model import Dim, Model, Tensor
from warmpool.publishing.export import Exported, export_method
from warmpool.publishing.params import materialise
from warmpool.publishing.program import Program, read_program
from warmpool.symbolic import shape_of

REPOSITORY = Path(__file__).parents[2]
BATCH = Dim("batch", max=64, sizes=(1, 4), batch=True)
SEQ = Dim("seq", max=16, sizes=(4, 16))
X = {"x": Tensor("float32", (BATCH, SEQ))}


def export(function: Any, params: Any = None, inputs: dict[str, Tensor] = X, **options: Any) -> Exported:
    model = Model(name="toy", methods={"predict": function}, params=params, inputs=inputs)
    return export_method(model, "predict", materialise(model), **options)


def refusal(function: Any, params: Any = None, inputs: dict[str, Tensor] = X, **options: Any) -> str:
    with pytest.raises(DeclarationError) as caught:
        export(function, params, inputs, **options)
    return str(caught.value)


def run(program: Program, *arguments: Any) -> list[np.ndarray]:
    return [np.asarray(one) for one in read_program(program.stored, program.digest).call(*arguments)]


def many_shapes(params: Any, x: Any) -> dict[str, Any]:
    return {
        "same": x,
        "twice": jnp.concatenate([x, x, x[:, :1]], axis=1),
        "half": x[:, ::2],
        "rows": jnp.sum(x, axis=1),
        "outer": x[:, :, None] * x[:, None, :],
        "capped": jnp.concatenate([x, x], axis=1)[:, :8],
        "whole": jnp.pad(x, ((0, 0), (0, -x.shape[1] % 8))),
    }


@functools.cache
def many_shapes_exported() -> Exported:
    return export(many_shapes)


@given(rows=st.integers(1, 4), length=st.integers(1, 16))
def test_output_shapes_are_expressions_that_hold_at_every_size(rows: int, length: int) -> None:
    wanted = jax.eval_shape(functools.partial(many_shapes, None), jax.ShapeDtypeStruct((rows, length), jnp.float32))
    found = {
        output.name: shape_of(output.shape, {"batch": rows, "seq": length})
        for output in many_shapes_exported().spec.outputs
    }
    assert found == {name: output.shape for name, output in wanted.items()}


def test_one_program_with_every_lowering_serves_all_buckets() -> None:
    exported = many_shapes_exported()
    assert exported.spec.symbolic
    assert list(exported.programs) == ["*"]
    assert exported.programs["*"].platforms == ("cpu", "cuda", "tpu")
    assert exported.notes == ()


def test_a_program_takes_every_weight_and_every_input_flat_even_unused_ones() -> None:
    def first(params: Any, x: Any, unused: Any) -> Any:
        return x @ params["layers"][1]["kernel"]

    params: Any = {"layers": [np.ones((4, 4), np.float32), {"kernel": np.full((4, 2), 3, np.float32)}]}
    inputs = {"x": Tensor("float32", (BATCH, 4)), "unused": Tensor("int32", (BATCH,))}
    exported = export(first, params, inputs)
    arguments = [params["layers"][0], params["layers"][1]["kernel"], np.ones((2, 4), np.float32), np.zeros(2, np.int32)]
    (found,) = run(exported.programs["*"], *arguments)
    np.testing.assert_array_equal(found, np.full((2, 2), 12.0))
    assert [output.name for output in exported.spec.outputs] == ["output"]


def test_a_slice_up_to_a_dimension_of_a_longer_table_is_no_open_question() -> None:
    def positions(params: Any, x: Any) -> Any:
        return x + params[: x.shape[1]]

    assert export(positions, np.zeros(32, np.float32)).spec.symbolic


def test_a_function_that_refuses_symbolic_dimensions_gets_one_program_a_bucket_and_that_is_said() -> None:
    def loops(params: Any, x: Any) -> Any:
        return jnp.stack([x[:, index] * index for index in range(x.shape[1])] + [x[:, 0]], axis=1)

    exported = export(loops, probes=[{"batch": 1, "seq": 1}, {"batch": 1, "seq": 5}])
    assert not exported.spec.symbolic
    assert list(exported.programs) == ["batch=1,seq=16", "batch=1,seq=4", "batch=4,seq=4", "batch=4,seq=16"]
    assert len(set(exported.spec.programs.values())) == 4
    assert exported.spec.outputs[0].shape == ("batch", "seq + 1")
    (note,) = exported.notes
    assert note.startswith(
        "it refuses symbolic dimensions, so there are 4 programs instead of one, one a bucket: TypeError"
    )
    x = np.ones((1, 5), np.float32)
    (found,) = run(exported.program_at({"batch": 1, "seq": 5}), x)
    np.testing.assert_array_equal(found, [[0, 1, 2, 3, 4, 1]])


def test_a_function_that_fails_at_a_size_callers_may_send_is_refused() -> None:
    def chunks(params: Any, x: Any) -> Any:
        return x.reshape(x.shape[0], -1, 4).sum(axis=2)

    message = refusal(chunks, probes=[{"batch": 1, "seq": 1}])
    assert message.startswith("model 'toy', method 'predict'")
    assert "it fails at batch=1,seq=1, which callers may send: TypeError" in message


def test_an_output_shape_that_no_rule_gives_is_refused() -> None:
    def squares(params: Any, x: Any) -> Any:
        return jnp.zeros((x.shape[0], int(x.shape[1]) ** 2))

    message = refusal(squares, probes=[{"batch": 1, "seq": 1}])
    assert "output 'output': axis 1 is 256 at batch=1,seq=16, 16 at batch=1,seq=4" in message


def test_outputs_that_change_with_the_shape_are_refused() -> None:
    def either(params: Any, x: Any) -> Any:
        return {"short": x} if int(x.shape[1]) < 5 else {"long": x}

    assert "outputs change name, dtype or rank with the shape, at batch=1,seq=4" in refusal(either)


def debug_print(params: Any, x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def pure_callback(params: Any, x: Any) -> Any:
    return jax.pure_callback(lambda value: value, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def ordered_callback(params: Any, x: Any) -> Any:
    io_callback(lambda value: None, None, x)
    return x


def callback_in_a_scan(params: Any, x: Any) -> Any:
    def step(carry: Any, column: Any) -> Any:
        jax.debug.callback(lambda value: None, column)
        return carry, column

    return jax.lax.scan(step, 0, x)[1]


@pytest.mark.parametrize("function", [debug_print, pure_callback, ordered_callback, callback_in_a_scan])
def test_a_callback_is_refused_wherever_it_is(function: Any) -> None:
    message = refusal(jax.jit(function))
    assert message.startswith("model 'toy', method 'predict': it calls back into Python (")
    assert message.endswith("), which no program can; remove the call")


CLOSED_OVER = np.ones((100, 100), np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda params, x: x @ CLOSED_OVER,
        lambda params, x: jax.jit(lambda value: value @ jnp.asarray(CLOSED_OVER))(x),
        lambda params, x: jax.lax.map(lambda row: row @ CLOSED_OVER, x),
    ],
)
def test_a_closed_over_weight_is_refused_with_its_shape(function: Any) -> None:
    message = refusal(function, inputs={"x": Tensor("float32", (BATCH, 100))})
    assert message == (
        "model 'toy', method 'predict': it closes over an array of float32 with shape (100, 100); "
        "at most 16384 bytes may be: move the array into params, so that new weights compile nothing"
    )


def test_a_small_constant_is_part_of_the_program_and_of_its_digest() -> None:
    def scaled(table: np.ndarray) -> str:
        return (
            export(lambda params, x: x * jnp.asarray(table), inputs={"x": Tensor("float32", (BATCH, 3))})
            .programs["*"]
            .digest
        )

    assert scaled(np.array([1, 2, 3], np.float32)) == scaled(np.array([1, 2, 3], np.float32))
    assert scaled(np.array([1, 2, 3], np.float32)) != scaled(np.array([1, 2, 4], np.float32))


OUTPUT_MISTAKES: dict[str, tuple[Any, str]] = {
    "tuple": (lambda params, x: (x, x), "output 'output': it is a tuple; return a tensor or a flat dict of tensors"),
    "nothing": (lambda params, x: None, "output 'output': it is a NoneType; return a tensor"),
    "nested dict": (lambda params, x: {"a": {"b": x}}, "output 'a': it is a dict; return a tensor"),
    "empty dict": (lambda params, x: {}, "it returns an empty dict; return at least one tensor"),
    "odd key": (lambda params, x: {"a b": x}, "it returns a dict with the key 'a b'; use a name that matches"),
    "complex": (
        lambda params, x: jax.lax.complex(x, x),
        "output 'output': dtype 'complex64' is not allowed; use one of",
    ),
    "random key": (
        lambda params, x: jax.vmap(jax.random.key)(x[:, 0].astype(int)),
        "output 'output': it is a random key; return jax.random.key_data(key)",
    ),
    "no batch": (
        lambda params, x: {"mean": jnp.mean(x)},
        "output 'mean', dimension 'batch': its shape is (), but axis 0 must be the batch dimension; return one",
    ),
    "batch elsewhere": (
        lambda params, x: x.T,
        "dimension 'batch': its shape is (seq, batch), but axis 0 must be the batch",
    ),
}


@pytest.mark.parametrize("mistake", OUTPUT_MISTAKES)
def test_an_output_that_cannot_be_served_is_refused(mistake: str) -> None:
    function, wanted = OUTPUT_MISTAKES[mistake]
    message = refusal(function)
    assert message.startswith("model 'toy', method 'predict'")
    assert wanted in message


def test_a_function_that_fails_is_told_with_its_own_error() -> None:
    message = refusal(lambda params, x: x @ params, np.ones((3, 3), np.float32), {"x": Tensor("float32", (2, 4))})
    assert message.startswith("model 'toy', method 'predict': it cannot be exported: TypeError: dot_general requires")


def eigenvalues(params: Any, x: Any) -> Any:
    return jnp.abs(jnp.linalg.eigvals(x))


def test_a_platform_that_a_function_cannot_be_lowered_for_is_left_out_and_that_is_said() -> None:
    exported = export(eigenvalues, inputs={"x": Tensor("float32", (BATCH, 3, 3))})
    assert "cpu" in exported.programs["*"].platforms
    assert "tpu" not in exported.programs["*"].platforms
    assert [note for note in exported.notes if note.startswith("left out tpu, which it cannot be lowered for: ")]


def test_a_platform_that_is_published_for_is_not_left_out() -> None:
    message = refusal(eigenvalues, inputs={"x": Tensor("float32", (BATCH, 3, 3))}, required=("cpu", "tpu"))
    assert "it cannot be lowered for tpu, which it is published for: " in message


@pytest.fixture
def wide() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def test_64_bit_mode_is_refused(wide: None) -> None:
    assert "model 'toy': 64-bit mode is on (jax_enable_x64); switch it off" in refusal(lambda params, x: x)


DIGESTED = """
import numpy as np
import jax.numpy as jnp
from warmpool.model import Dim, Model, Tensor
{above}
seq = Dim("seq", max=8)
def attend(params, x):
    scores = jnp.einsum("bs,bt->bst", x, x)
    return {{"weights": jnp.where(scores > 0, scores, jnp.inf), "sum": jnp.sum(x * params["w"], axis=1)}}
model = Model(
    name="toy",
    methods={{"predict": attend}},
    params={{"w": np.ones((), np.float32)}},
    inputs={{"x": Tensor("float32", (Dim("batch", max=4, batch=True), seq))}},
)
"""
PRINT_DIGEST = """
import sys
from pathlib import Path
from warmpool.publishing.export import export_method
from warmpool.publishing.modelfile import load_model
from warmpool.publishing.params import materialise
model = load_model(Path(sys.argv[1]))
print(export_method(model, "predict", materialise(model)).programs["*"].digest)
"""


def test_a_digest_is_the_same_in_other_processes_from_other_lines_and_paths(tmp_path: Path) -> None:
    children = []
    for number, above in enumerate(("", "# moved\n\n# down\n")):
        path = tmp_path / str(number) / f"model_{number}.py"
        path.parent.mkdir()
        path.write_text(textwrap.dedent(DIGESTED.format(above=above)))
        environment = {"PYTHONHASHSEED": str(number), "PYTHONPATH": str(REPOSITORY), "PATH": ""}
        command = [sys.executable, "-c", PRINT_DIGEST, str(path)]
        children.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path))
    first, second = (child.communicate(timeout=120)[0] for child in children)
    assert len(first.strip()) == 64
    assert first == second
