"""Two sets of ingredients have the same key if and only if they are the same set."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cache.fingerprint import Fingerprint
from cache.ingredients import digest_ingredients
from cache.key import executable_ingredients

# Few letters, so that names and values run into each other where lengths are not hashed.
words = st.text("ab\0:é", max_size=4)
sets = st.dictionaries(words, words, max_size=4)
PARTS: dict[str, Any] = {
    "program": "p" * 64,
    "bucket": {"batch": 8, "seq": 128},
    "fingerprint": Fingerprint({"jaxlib": "1", "machine": "x"}),
    "options": {"level": "2"},
}


@given(sets, sets)
def test_different_ingredients_have_different_digests(one, other):
    assert (digest_ingredients(one) == digest_ingredients(other)) == (one == other)


@given(words, words, words)
def test_a_name_and_its_value_do_not_run_together(name, middle, value):
    assume(middle)
    assert digest_ingredients({name + middle: value}) != digest_ingredients({name: middle + value})


@given(sets, st.randoms(use_true_random=False))
def test_order_does_not_matter(ingredients, random):
    shuffled = list(ingredients.items())
    random.shuffle(shuffled)
    assert digest_ingredients(dict(shuffled)) == digest_ingredients(ingredients)


def test_the_digest_is_that_of_the_documented_bytes():
    length = (2).to_bytes(8, "little")
    expected = hashlib.sha256(length + "é".encode() + (1).to_bytes(8, "little") + b"x").hexdigest()
    assert digest_ingredients({"é": "x"}) == expected


def test_the_digest_of_nothing_is_that_of_no_bytes():
    assert digest_ingredients({}) == hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"program": "q" * 64},
        {"bucket": {"batch": 4, "seq": 128}},
        {"bucket": {"batch": 128, "seq": 8}},
        {"bucket": {"batch": 8}},
        {"bucket": {}},
        {"options": {"level": "1"}},
        {"options": {}},
        {"options": {"level": "2", "more": ""}},
        {"fingerprint": Fingerprint({"jaxlib": "2", "machine": "x"})},
        {"fingerprint": Fingerprint({"jaxlib": "1"})},
    ],
)
def test_every_part_of_an_executable_counts(change):
    assert executable_ingredients(**PARTS | change) != executable_ingredients(**PARTS)


def test_a_dimension_an_option_and_a_fingerprint_ingredient_of_one_name_are_told_apart():
    nothing: dict[str, Any] = {"program": "p", "bucket": {}, "options": {}, "fingerprint": Fingerprint({})}
    changes: list[dict[str, Any]] = [
        {"bucket": {"x": 1}},
        {"options": {"x": "1"}},
        {"fingerprint": Fingerprint({"x": "1"})},
    ]
    keys = {digest_ingredients(executable_ingredients(**nothing | change)) for change in changes}
    assert len(keys) == 3


def test_an_executable_has_these_ingredients_and_a_key_of_64_hex_digits():
    ingredients = executable_ingredients(**PARTS)
    assert ingredients == {
        "program": "p" * 64,
        "bucket.batch": "8",
        "bucket.seq": "128",
        "option.level": "2",
        "fingerprint.jaxlib": "1",
        "fingerprint.machine": "x",
    }
    key = digest_ingredients(ingredients)
    assert (len(key), int(key, 16) > 0) == (64, True)


def test_every_process_makes_the_same_key_whatever_its_hash_seed():
    code = f"from cache.ingredients import digest_ingredients as d; print(d({executable_ingredients(**PARTS)}))"
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
        for seed in "12"
    }
    assert keys == {digest_ingredients(executable_ingredients(**PARTS))}
