"""Numbers of open files that are given once, and how many there are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cache.descriptors import numbered_once

_WITHIN = """
import os, resource
from cache.descriptors import allow_descriptors, numbered_once
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
numbers = []
for _ in range(100):
    numbers.append(numbered_once(os.open("/dev/null", os.O_RDONLY)))
    os.close(numbers[-1])
print(allow_descriptors(0), min(numbers), max(numbers), len(set(numbers)))
"""


def within(soft, hard):
    done = subprocess.run(
        [sys.executable, "-c", _WITHIN.format(soft=soft, hard=hard)], capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


def test_a_number_is_not_given_again_when_its_file_is_closed():
    first = numbered_once(os.open("/dev/null", os.O_RDONLY))
    os.close(first)
    second = numbered_once(os.open("/dev/null", os.O_RDONLY))
    os.close(second)
    assert second > first


def test_the_file_is_the_same_and_the_old_number_is_closed_and_no_child_inherits_it(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    old = os.open(tmp_path / "file", os.O_RDONLY)
    number = numbered_once(old)
    assert os.read(number, 10) == b"content"
    assert not os.get_inheritable(number)
    os.close(number)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(old)


def test_a_process_takes_as_many_as_it_may_have():
    assert within(64, 2048) == [2048, 1024, 1123, 100]


def test_where_there_are_few_they_are_given_again_only_when_all_were():
    limit, least, most, different = within(64, 64)
    assert (limit, least, most, different) == (64, 32, 63, 32)


def test_where_none_is_left_that_is_an_error_and_nothing_stays_open():
    code = """
import os, resource
from cache.descriptors import numbered_once
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
held = []
try:
    while True:
        held.append(numbered_once(os.open("/dev/null", os.O_RDONLY)))
except OSError as error:
    print(error.errno, len(held))
print(len(os.listdir("/proc/self/fd")) - 1 - len(held))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["24", "8", "3"]
