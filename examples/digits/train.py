"""Trains the digits network on scikit-learn's digits, data-parallel over every device there is.

    python -m examples.digits.train [FOLDER] [--seed 0] [--epochs 30] [--json]

Parameters are replicated, each batch is split over the devices, and XLA inserts the one sum of gradients that this
needs. The same seed on the same number of devices gives the same weights, bit for bit. What is saved is a plain nested
dict of arrays, which Orbax restores without any code of ours.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from examples.digits.files import checkpoint
from examples.digits.network import initial, logits
from warmpool.publishing.progress import shown_on

BATCH = 128
EPOCHS = 30
HOLD_OUT = 360  # a fifth of the 1,797 images
LEARNING_RATE = 3e-3

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Split:
    """Images float32 [n, 8, 8] from 0 to 16, and labels int32 [n]."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the training images gave; loss and gradient norm are means over its steps."""

    epoch: int
    loss: float
    gradient_norm: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished run."""

    params: Params
    history: tuple[Epoch, ...]
    devices: int
    seconds: float

    @property
    def accuracy(self) -> float:
        """The share of hold-out images that the last epoch's weights name rightly."""
        return self.history[-1].accuracy


def splits() -> tuple[Split, Split]:
    """Training and hold-out images; the same ones for every seed, so that runs compare."""
    from sklearn.datasets import load_digits  # takes a second to import, which `--help` need not wait for

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = digits.images[order].astype(np.float32), digits.target[order].astype(np.int32)
    return Split(images[HOLD_OUT:], labels[HOLD_OUT:]), Split(images[:HOLD_OUT], labels[:HOLD_OUT])


def loss_of(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy over a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels).mean()


def optimizer(steps: int) -> optax.GradientTransformation:
    """AdamW whose rate falls to zero along a cosine, so that the last weights are settled ones."""
    return optax.adamw(optax.cosine_decay_schedule(LEARNING_RATE, steps))


@partial(jax.jit, static_argnames="steps", donate_argnums=(0, 1))
def step(
    params: Params, state: optax.OptState, images: jax.Array, labels: jax.Array, *, steps: int
) -> tuple[Params, optax.OptState, jax.Array, jax.Array]:
    """One update; also the loss and the gradient's norm before it."""
    loss, gradient = jax.value_and_grad(loss_of)(params, images, labels)
    updates, state = optimizer(steps).update(gradient, state, params)
    return optax.apply_updates(params, updates), state, loss, optax.tree.norm(gradient)


@jax.jit
def accuracy_of(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The share of images whose largest logit is at their label."""
    right: jax.Array = jnp.argmax(logits(params, images), axis=-1) == labels
    return right.mean()


def batches(split: Split, size: int, seed: int, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The images in an order of this epoch's own, in batches of `size`; a remainder waits for another epoch."""
    order = np.random.default_rng((seed, epoch)).permutation(len(split.labels))
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield split.images[chosen], split.labels[chosen]


def train(seed: int = 0, epochs: int = EPOCHS, report: Callable[[Epoch], None] = lambda _: None) -> Trained:
    """Train from scratch.

    Args:
        seed: Decides the first weights and the order of the images.
        epochs: Passes over the training images, at least 1.
        report: Called after each of them.
    """
    began = time.perf_counter()
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,))
    over_rows, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    training, held_out = splits()
    size = max(1, BATCH // len(devices)) * len(devices)  # rows must divide evenly among the devices
    steps = epochs * (len(training.labels) // size)

    params: Params = jax.device_put(initial(seed), everywhere)
    state = jax.device_put(optimizer(steps).init(params), everywhere)
    check = jax.device_put((held_out.images, held_out.labels), everywhere)
    history: list[Epoch] = []
    for epoch in range(1, epochs + 1):
        losses, norms = [], []
        for batch in batches(training, size, seed, epoch):
            images, labels = jax.device_put(batch, over_rows)
            params, state, loss, norm = step(params, state, images, labels, steps=steps)
            losses.append(loss)
            norms.append(norm)
        accuracy = float(accuracy_of(params, *check))
        history.append(Epoch(epoch, float(np.mean(losses)), float(np.mean(norms)), accuracy))
        report(history[-1])
    return Trained(jax.device_get(params), tuple(history), len(devices), time.perf_counter() - began)


def save(params: Params, folder: Path) -> None:
    """Put the params in `folder` as an Orbax checkpoint, replacing the one that is there; never half of one."""
    import orbax.checkpoint as ocp  # another second that `--help` need not wait for

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder.resolve(), params, force=True)


def ensure(folder: Path, report: Callable[[Epoch], None] = lambda _: None) -> Trained | None:
    """Train into `folder` unless it exists; None if it does."""
    if folder.exists():
        return None
    trained = train(report=report)
    save(trained.params, folder)
    return trained


def parser() -> argparse.ArgumentParser:
    """The command line."""
    summary, _, _ = (__doc__ or "").partition("\n")
    result = argparse.ArgumentParser(prog="python -m examples.digits.train", description=summary)
    result.add_argument(
        "folder", nargs="?", type=Path, default=checkpoint(), help="where the checkpoint goes (%(default)s)"
    )
    result.add_argument("--seed", type=int, default=0, help="decides first weights and order (%(default)s)")
    result.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the images (%(default)s)")
    result.add_argument("--json", action="store_true", help="print one JSON object with the whole history")
    return result


def main(arguments: list[str] | None = None) -> int:
    """Train, save and say what came of it."""
    options = parser().parse_args(arguments)
    if options.epochs < 1:
        parser().error(f"--epochs: got {options.epochs}; allowed: 1 or more")
    with shown_on(sys.stderr) as progress:
        progress.expect(options.epochs)
        trained = train(options.seed, options.epochs, lambda epoch: progress.step(line_of(epoch)))
    save(trained.params, options.folder)
    if options.json:
        history = [asdict(epoch) for epoch in trained.history]
        summary = {"accuracy": trained.accuracy, "devices": trained.devices, "seconds": round(trained.seconds, 2)}
        print(json.dumps({**summary, "folder": str(options.folder), "seed": options.seed, "history": history}))
    else:
        print(f"hold-out accuracy {trained.accuracy:.4f}, {trained.devices} device(s), {trained.seconds:.1f} s")
        print(f"saved to {options.folder}")
    return 0


def line_of(epoch: Epoch) -> str:
    """An epoch as one line of a log."""
    numbers = f"loss {epoch.loss:.4f}, gradient norm {epoch.gradient_norm:.3f}, hold-out accuracy {epoch.accuracy:.4f}"
    return f"epoch {epoch.epoch}: {numbers}"


if __name__ == "__main__":
    sys.exit(main())
