"""Which version gets a request: pinned, kept by a key, or counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.errors import BadInput, NotFound
from warmpool.manifest import Serving
from warmpool.version_routing import NOTHING_WISHED, Routing, Wish, position

BOTH = frozenset({"a", "b"})


def routing(**serving):
    made = Routing("a")
    made.follow(Serving(stable="a", **serving))
    return made


def counted(made, requests, wish=NOTHING_WISHED, warm=BOTH):
    return [made.choose(wish, warm) for _ in range(requests)]


def test_without_a_canary_everybody_gets_stable():
    assert set(counted(routing(), 10)) == {"a"}
    assert set(counted(routing(previous="b"), 10)) == {"a"}


@given(
    st.floats(0.0, 1.0),
    st.integers(0, 100_000),
    st.integers(1, 300),
)
def test_of_any_requests_in_a_row_the_canary_gets_its_share_give_or_take_less_than_four(share, before, requests):
    made = routing(canary="b", share=share)
    made._counted = before
    found = counted(made, requests).count("b")
    assert abs(found - requests * share) < 4


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("kinds", [2, 3, 4, 5, 8, 10, 20])
def test_traffic_that_comes_in_turns_gives_the_canary_its_share_of_each_kind(share, kinds):
    chosen = counted(routing(canary="b", share=share), 1000 * kinds)
    for kind in range(kinds):
        assert chosen[kind::kinds].count("b") == pytest.approx(1000 * share, abs=10)


def test_a_share_of_a_half_does_not_alternate():
    assert counted(routing(canary="b", share=0.5), 6) == ["a", "b", "a", "b", "b", "a"]


def test_a_share_of_nothing_and_of_all_are_exact():
    assert set(counted(routing(canary="b", share=0.0), 50)) == {"a"}
    assert set(counted(routing(canary="b", share=1.0), 50)) == {"b"}


def test_the_count_goes_on_while_nothing_changes_and_begins_anew_when_the_share_does():
    made = routing(canary="b", share=0.25)
    assert counted(made, 4) == ["a", "b", "a", "a"]
    made.follow(Serving(stable="a", canary="b", share=0.25, mirror=0.5, reason="more is mirrored"))
    assert counted(made, 1) == ["b"]
    counted(made, 5)
    made.follow(Serving(stable="a", canary="b", share=0.5))
    assert counted(made, 2) == ["a", "b"]


def test_a_canary_that_is_not_fully_warm_gets_nothing_and_takes_no_count():
    made = routing(canary="b", share=0.5)
    assert set(counted(made, 9, warm={"a"})) == {"a"}
    assert counted(made, 2) == ["a", "b"]


def test_stable_gets_its_requests_though_it_is_not_warm_yet():
    assert routing().choose(NOTHING_WISHED, frozenset()) == "a"
    assert routing().choose(Wish("a"), frozenset()) == "a"


def test_a_caller_that_names_a_version_gets_it_whatever_the_share_and_is_not_counted():
    made = routing(canary="b", share=0.5, previous="c")
    warm = {"a", "b", "c"}
    for version in sorted(warm):
        assert set(counted(made, 5, Wish(version), warm)) == {version}
    assert counted(made, 2) == ["a", "b"]


@pytest.mark.parametrize("version", ["c", "d", "A", " a"])
def test_a_version_that_is_not_warm_or_not_there_is_not_found_and_the_others_are_named(version):
    with pytest.raises(NotFound, match=rf"version '{version}' is not served; served: a, b"):
        routing(canary="b", share=1.0, previous="c").choose(Wish(version), BOTH)


@given(st.text(max_size=40))
def test_a_key_always_gets_the_same_version_and_a_larger_share_sends_none_back(key):
    wish = Wish(sticky_key=key or "k")
    chosen = [
        counted(routing(canary="b", share=share, sticky=True), 4, wish) for share in (0.0, 0.1, 0.3, 0.5, 0.9, 1.0)
    ]
    assert all(len(set(each)) == 1 for each in chosen)
    firsts = [each[0] for each in chosen]
    assert firsts == sorted(firsts), "once b, always b"
    assert (firsts[0], firsts[-1]) == ("a", "b")


def test_keys_are_spread_evenly_and_another_canary_has_others_first():
    places = [position("b", f"caller {index}") for index in range(4000)]
    assert all(0.0 <= place < 1.0 for place in places)
    below = sum(place < 0.2 for place in places)
    assert abs(below - 800) < 4 * math.sqrt(4000 * 0.2 * 0.8)
    both = sum(place < 0.2 and position("c", f"caller {index}") < 0.2 for index, place in enumerate(places))
    assert abs(both - 160) < 4 * math.sqrt(4000 * 0.04 * 0.96)


def test_a_key_counts_only_where_the_rollout_asks_for_it():
    wish = Wish(sticky_key="somebody")
    assert counted(routing(canary="b", share=0.5), 4, wish) == ["a", "b"] * 2
    assert len(set(counted(routing(canary="b", share=0.5, sticky=True), 4, wish))) == 1


def test_who_has_no_key_is_counted_where_others_are_kept():
    assert counted(routing(canary="b", share=0.5, sticky=True), 4) == ["a", "b"] * 2


def test_a_wish_is_made_of_path_and_headers():
    assert Wish.of("", "", "") == NOTHING_WISHED
    assert Wish.of("1", "", "") == Wish.of("", "1", "") == Wish.of("1", "1", "") == Wish("1")
    assert Wish.of("", "", "me") == Wish(sticky_key="me")


def test_the_key_of_a_header_counts_before_that_of_a_parameter():
    assert Wish.of("", "", "header").with_key("parameters.sticky_key", "parameter").sticky_key == "header"
    assert Wish().with_key("parameters.sticky_key", "parameter").sticky_key == "parameter"
    assert Wish().with_key("parameters.sticky_key", None) == NOTHING_WISHED


def test_a_path_and_a_header_that_name_two_versions_are_refused():
    with pytest.raises(BadInput, match="warmpool-version: got '2'; allowed: 1, which the path names, or none"):
        Wish.of("1", "2", "")


@pytest.mark.parametrize("key", ["k" * 257, 7, True, ["k"]])
def test_a_key_that_is_no_short_text_is_refused_by_its_field(key):
    with pytest.raises(BadInput, match=r"^parameters\.sticky_key: got .*; allowed: text of at most 256 characters"):
        Wish().with_key("parameters.sticky_key", key)


def test_a_version_that_is_too_long_is_refused():
    with pytest.raises(BadInput, match=r"^warmpool-version: got .*; allowed: text of at most 256 characters"):
        Wish.of("", "v" * 257, "")


def test_a_key_of_any_characters_has_a_place():
    assert 0.0 <= position("b", "\ud800 \x00 ü") < 1.0
