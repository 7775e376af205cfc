from __future__ import annotations

import pytest

from benchmarks.peer_fastapi import MODELS, Embedder
from benchmarks.questions import sentence


@pytest.mark.parametrize("model", MODELS)
def test_the_peer_answers_as_the_reference_at_the_exact_shape_and_in_a_bucket(model: str) -> None:
    question = sentence()
    embedder = Embedder(model, [])
    for buckets, shape in (([], (1, 11)), ([(1, 8), (2, 12), (1, 256)], (2, 12))):
        embedder.buckets = buckets
        assert embedder.covering(1, 11) == shape
        question.check(embedder.embed(**question.inputs), "the peer")
