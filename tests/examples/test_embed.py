from __future__ import annotations

import json
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from jax import export
from safetensors.numpy import load_file

from examples.embed.files import REFERENCE, model_folder
from examples.embed.function import tokenizer
from examples.embed.model import load_params, model, predict
from tests.examples.reference_bert import embedding

RECORDED = json.loads(REFERENCE.read_text(encoding="utf-8"))

run = jax.jit(predict)


@pytest.fixture(scope="module")
def params() -> Any:
    return jax.device_put(load_params())


@cache
def tokenised(texts: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    encodings = tokenizer().encode_batch(list(texts))
    ids = np.array([encoding.ids for encoding in encodings], np.int32)
    return ids, np.array([encoding.attention_mask for encoding in encodings], np.int32)


def padded(array: np.ndarray, rows: int, columns: int, fill: int = 0) -> np.ndarray:
    margins = [(0, rows - array.shape[0]), (0, columns - array.shape[1])]
    return np.pad(array, margins, constant_values=fill)


def test_vectors_agree_with_those_recorded_from_sentence_transformers(params: Any) -> None:
    *short, long = zip(RECORDED["texts"], RECORDED["vectors"], strict=True)
    texts, expected = zip(*short, strict=True)
    np.testing.assert_allclose(run(params, *tokenised(texts)), expected, rtol=0, atol=1e-5)
    text, vector = long
    np.testing.assert_allclose(run(params, *tokenised((text,)))[0], vector, rtol=0, atol=1e-5)


def test_vectors_agree_with_a_float64_bert_written_from_the_paper(params: Any) -> None:
    rng = np.random.default_rng(3)
    tensors = load_file(model_folder() / "model.safetensors")
    lengths = (16, 9, 1)
    ids = rng.integers(0, 30522, (3, 16)).astype(np.int32)
    mask = (np.arange(16) < np.array(lengths)[:, None]).astype(np.int32)
    expected = [embedding(tensors, row[:length].tolist()) for row, length in zip(ids, lengths, strict=True)]
    np.testing.assert_allclose(run(params, ids, mask), expected, rtol=0, atol=1e-5)


def test_the_tokeniser_counts_as_the_recorded_one_and_cuts_at_256() -> None:
    encodings = tokenizer().encode_batch(RECORDED["texts"])
    assert [sum(encoding.attention_mask) for encoding in encodings] == RECORDED["tokens"]
    assert max(RECORDED["tokens"]) == 256
    assert len(tokenizer().encode_batch(["one", "two words"])[0].ids) == 4  # the longest beside it, no further


def test_vectors_have_length_one_and_near_sentences_are_nearer_than_far_ones(params: Any) -> None:
    vectors = np.asarray(run(params, *tokenised(tuple(RECORDED["texts"][:4]))))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    likeness = vectors @ vectors.T
    cat, kitten, bank, loan = range(4)
    near = min(likeness[cat, kitten], likeness[bank, loan])
    far = max(likeness[one, other] for one in (cat, kitten) for other in (bank, loan))
    assert near > far + 0.2


@pytest.mark.parametrize("fill", [0, 29999])
def test_padding_of_either_dimension_changes_nothing_whatever_it_holds(params: Any, fill: int) -> None:
    ids, mask = tokenised(tuple(RECORDED["texts"][:3]))
    exact = run(params, ids, mask)
    wide = run(params, padded(ids, 4, 64, fill), padded(mask, 4, 64))
    np.testing.assert_allclose(wide[:3], exact, rtol=0, atol=model.tolerance.atol)


def test_a_row_without_a_single_token_gives_zeros_and_leaves_its_neighbours_alone(params: Any) -> None:
    ids, mask = tokenised(tuple(RECORDED["texts"][:3]))
    exact = np.asarray(run(params, ids, mask))
    without = mask.copy()
    without[1] = 0
    vectors = np.asarray(run(params, ids, without))
    np.testing.assert_array_equal(vectors[1], 0)
    np.testing.assert_allclose(vectors[[0, 2]], exact[[0, 2]], rtol=0, atol=1e-6)


def test_a_batch_equals_its_rows_alone(params: Any) -> None:
    ids, mask = tokenised(tuple(RECORDED["texts"][:3]))
    together = run(params, ids, mask)
    for row in range(3):
        alone = run(params, ids[row : row + 1], mask[row : row + 1])[0]
        np.testing.assert_allclose(alone, together[row], rtol=0, atol=1e-6)


def test_one_symbolic_program_without_weights_in_it_serves_every_platform(params: Any) -> None:
    batch, seq = export.symbolic_shape("batch, seq")
    tokens = jax.ShapeDtypeStruct((batch, seq), np.int32)
    weights = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), params)
    exported = export.export(run, platforms=("cpu", "cuda", "tpu"))(weights, tokens, tokens)
    assert str(exported.out_avals[0].shape) == "(batch, 384)"
    assert len(exported.mlir_module_serialized) < 100_000  # the weights alone are 90 million bytes
