"""What a lane's restart is compared with computes the right thing, and is not believed where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cold_jit import MODELS, first_answer_s
from benchmarks.questions import WrongAnswer, sentence


@pytest.mark.parametrize("model", MODELS)
def test_a_cold_jit_process_answers_as_the_reference_does(model: str) -> None:
    assert first_answer_s(sentence(), model) > 0


def test_an_answer_that_is_not_the_references_is_an_error() -> None:
    question = sentence()
    with pytest.raises(WrongAnswer, match="the cold jit process"):
        first_answer_s(replace(question, expected=question.expected + 1), "plain")


def test_a_process_that_fails_is_an_error_with_its_last_words() -> None:
    question = sentence()
    ids = question.inputs["input_ids"]
    with pytest.raises(RuntimeError, match=r"(?s)cold jit process ended with status 1.*incompatible"):
        first_answer_s(replace(question, inputs={"input_ids": ids, "attention_mask": ids[:, :3]}), "plain")
