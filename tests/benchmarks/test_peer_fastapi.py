from __future__ import annotations

from benchmarks.peer_fastapi import Embedder
from benchmarks.questions import sentence


def test_the_peer_answers_as_the_reference_at_the_exact_shape_and_in_a_bucket() -> None:
    question = sentence()
    embedder = Embedder([])
    for buckets, shape in (([], (1, 11)), ([(1, 8), (2, 12), (1, 256)], (2, 12))):
        embedder.buckets = buckets
        assert embedder.covering(1, 11) == shape
        question.check(embedder.embed(**question.inputs), "the peer")
