"""The nearest executable is the one that differs in the fewest ingredients, and every difference is told by name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cache.explain import Difference, differing, nearest

# Few words, so that sets are often near one another.
values = st.lists(st.sampled_from(["avx", "amx", "fma", ""]), max_size=3).map(" ".join)
sets = st.dictionaries(st.sampled_from(["flags", "jaxlib", "program"]), values)
WANTED = {"program": "p", "jaxlib": "2", "flags": "", "cpu": "avx fma sse4_2"}


def test_every_ingredient_that_is_not_the_same_is_named_with_both_values():
    found = {"program": "p", "jaxlib": "1", "cpu": "avx amx", "more": "x"}
    assert differing(WANTED, found) == (
        Difference("cpu", "avx fma sse4_2", "avx amx"),
        Difference("flags", "", ""),  # empty is not the same as lacking
        Difference("jaxlib", "2", "1"),
        Difference("more", "", "x"),
    )


@given(sets, sets)
def test_nothing_differs_between_the_same_and_only_between_them(one, other):
    assert (differing(one, other) == ()) == (one == other)


def test_of_lists_the_words_are_told_that_only_one_side_has():
    difference = Difference("cpu", "avx avx512f avx512bw fma", "amx avx fma")
    assert difference.only_wanted == ("avx512f", "avx512bw")
    assert difference.only_found == ("amx",)


@given(values, values)
def test_words_that_both_have_are_in_neither_list(wanted, found):
    difference = Difference("cpu", wanted, found)
    assert {*difference.only_wanted} == {*wanted.split()} - {*found.split()}
    assert {*difference.only_found} == {*found.split()} - {*wanted.split()}


def test_without_candidates_there_is_no_nearest():
    assert nearest(WANTED, {}) is None


def test_fewer_ingredients_are_nearer_than_fewer_words():
    words = WANTED | {"cpu": "a b c d e f g"}
    ingredients = WANTED | {"jaxlib": "1", "program": "q"}
    found = nearest(WANTED, {"1": ingredients, "2": words})
    assert found is not None
    assert (found.key, [one.ingredient for one in found.differences]) == ("2", ["cpu"])


def test_of_as_many_ingredients_fewer_words_are_nearer():
    near, far = WANTED | {"cpu": "avx fma sse4_2 amx"}, WANTED | {"cpu": "neon"}
    found = nearest(WANTED, {"1": far, "2": near})
    assert found is not None
    assert found.key == "2"


def test_of_equals_it_is_always_the_same():
    one, other = WANTED | {"jaxlib": "1"}, WANTED | {"jaxlib": "3"}
    assert nearest(WANTED, {"b": one, "a": other}) == nearest(WANTED, {"a": other, "b": one})


@given(sets, st.dictionaries(st.text("abc", min_size=1, max_size=2), sets, min_size=1))
def test_nothing_is_nearer_than_the_nearest(wanted, candidates):
    found = nearest(wanted, candidates)
    assert found is not None
    assert found.differences == differing(wanted, candidates[found.key])
    assert len(found.differences) == min(len(differing(wanted, each)) for each in candidates.values())
