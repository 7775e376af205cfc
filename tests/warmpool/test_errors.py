import re

import pytest

from warmpool import errors


def below(kind):
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in below(child))]


def test_the_drawn_tree_is_the_tree_of_classes():
    drawn = re.findall(r"^ {4}([│ ]*)(?:[├└]── )?([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    ours = [kind for kind in below(errors.WarmpoolError) if kind.__module__ == "warmpool.errors"]
    assert [name for _, name in drawn] == [kind.__name__ for kind in ours]


def test_every_error_says_what_to_do():
    assert all(kind.__doc__ for kind in below(errors.WarmpoolError))


def test_an_error_about_a_field_shows_what_came_in_a_bounded_length():
    error = errors.BadInput.about("inputs[0].shape", "x" * 10_000, "a list")
    assert str(error).startswith("inputs[0].shape: got 'xxx")
    assert str(error).endswith("…; allowed: a list")
    assert len(str(error)) < 150


def test_what_is_printable_is_whole_on_one_line_and_moves_no_cursor():
    assert errors.printable("bucket batch=1 · 12 µs …") == "bucket batch=1 · 12 µs …"
    assert errors.printable("a\n\x1b[31mb\x9b\x7f\u202e\udc80") == r"a\n\x1b[31mb\x9b\x7f\u202e\udc80"


@pytest.mark.parametrize("kind", errors.RetryLater.__subclasses__())
def test_an_error_to_retry_later_says_when(kind):
    assert kind("busy").retry_after_s > 0
    assert kind("busy", retry_after_s=7).retry_after_s == 7
