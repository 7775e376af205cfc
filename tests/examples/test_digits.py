from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax import export

from examples.digits import files, train
from examples.digits.model import predict
from examples.digits.picture import pixels_of
from tests.examples.pictures import ink_on_paper, png_of
from tests.examples.reference_digits import probabilities_of

ROOT = Path(__file__).parents[2]

run = jax.jit(predict)


@pytest.fixture(scope="module")
def params(checkpoint: Path) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(checkpoint)


@pytest.fixture(scope="module")
def held_out() -> train.Split:
    return train.splits()[1]


def test_training_reaches_97_percent_of_images_it_never_saw(trained: Path) -> None:
    history = json.loads((trained / "history.json").read_text(encoding="utf-8"))
    assert history[-1]["accuracy"] >= 0.97
    assert [epoch["epoch"] for epoch in history] == list(range(1, train.EPOCHS + 1))
    norms = [epoch["gradient_norm"] for epoch in history]
    assert min(norms) > 0
    assert norms[-1] < norms[0] / 3


def test_hold_out_images_are_none_of_the_training_images() -> None:
    training, held_out = train.splits()
    assert len(training.labels) + len(held_out.labels) == 1797
    assert not {image.tobytes() for image in held_out.images} & {image.tobytes() for image in training.images}


def test_the_environment_says_where_the_checkpoint_is_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMPOOL_DIGITS_CHECKPOINT", raising=False)
    beside = files.checkpoint()
    assert beside == Path(files.__file__).parent / "checkpoint"
    monkeypatch.setenv("WARMPOOL_DIGITS_CHECKPOINT", "/else/where")
    assert files.checkpoint() == Path("/else/where")


def test_a_checkpoint_that_exists_is_not_trained_again(checkpoint: Path) -> None:
    assert train.ensure(checkpoint) is None


def test_orbax_gives_back_the_trained_weights_without_any_code_of_ours(trained: Path, params: Any) -> None:
    assert type(params) is dict
    found = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    with np.load(trained / "params.npz") as wanted:
        assert found.keys() == set(wanted)
        for name, leaf in found.items():
            np.testing.assert_array_equal(leaf, wanted[name])


def test_the_same_seed_gives_the_same_weights_and_another_seed_gives_others() -> None:
    first, again, other = (train.train(seed, epochs=1).params for seed in (5, 5, 6))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(first["out"]["kernel"], other["out"]["kernel"])


class Enough(Exception):
    """One epoch is."""


def test_four_devices_share_each_batch_and_learn_the_same(tmp_path: Path) -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    folders = [tmp_path / "one", tmp_path / "two"]
    command = [sys.executable, "-m", "examples.digits.train", "--epochs", "8", "--json"]
    runs = [
        subprocess.Popen(
            [*command, str(folder)],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for folder in folders
    ]
    outputs = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    reports = [json.loads(out) for out, _ in outputs]
    assert [report["devices"] for report in reports] == [4, 4]
    assert min(report["accuracy"] for report in reports) >= 0.97
    assert "epoch 8: loss" in outputs[0][1]
    assert "gradient norm" in outputs[0][1]
    # Four parts of a batch sum its gradients in another order: the first epoch differs in its last bits only.
    alone: list[train.Epoch] = []

    def enough(epoch: train.Epoch) -> None:
        alone.append(epoch)
        raise Enough

    with pytest.raises(Enough):
        train.train(0, epochs=8, report=enough)
    assert reports[0]["history"][0]["loss"] == pytest.approx(alone[0].loss, rel=1e-3)
    assert reports[0]["history"][0]["gradient_norm"] == pytest.approx(alone[0].gradient_norm, rel=1e-3)
    with ocp.StandardCheckpointer() as checkpointer:
        one, two = (checkpointer.restore(folder) for folder in folders)
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_answers_agree_with_the_network_written_in_numpy(params: Any, held_out: train.Split) -> None:
    images = held_out.images[:20]
    answer = run(params, images)
    expected = np.array([probabilities_of(params, image) for image in images])
    np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(answer["label"], expected.argmax(axis=1))


def test_neither_padding_nor_neighbours_change_a_row(params: Any, held_out: train.Split) -> None:
    images = held_out.images[:5]
    exact = run(params, images)["probabilities"]
    garbage = np.random.default_rng(0).uniform(0, 16, (11, 8, 8)).astype(np.float32)
    for padding in (np.zeros_like(garbage), garbage):
        padded = run(params, np.concatenate([images, padding]))["probabilities"]
        np.testing.assert_allclose(padded[:5], exact, rtol=1e-5, atol=1e-6)
    alone = [run(params, image[None])["probabilities"][0] for image in images]
    np.testing.assert_allclose(alone, exact, rtol=1e-5, atol=1e-6)


def test_one_symbolic_program_serves_every_platform(params: Any) -> None:
    (batch,) = export.symbolic_shape("batch")
    weights = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), params)
    image = jax.ShapeDtypeStruct((batch, 8, 8), np.float32)
    exported = export.export(run, platforms=("cpu", "cuda", "tpu"))(weights, image)
    assert [str(aval.shape) for aval in exported.out_avals] == ["(batch,)", "(batch, 10)"]


def test_hold_out_digits_are_recognised_as_pictures(params: Any, held_out: train.Split) -> None:
    images = np.array([pixels_of(png_of(ink_on_paper(image))) for image in held_out.images[:100]], np.float32)
    assert (run(params, images)["label"] == held_out.labels[:100]).mean() >= 0.95
