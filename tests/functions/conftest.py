"""What the tests of functions share: running instances, and settings that point to them."""

import socket

import pytest

from functions.settings import Settings
from tests.functions.fake_instance import FakeInstance


@pytest.fixture
def instance():
    with FakeInstance() as running:
        yield running


@pytest.fixture
def other():
    with FakeInstance() as running:
        yield running


@pytest.fixture
def dead_url():
    """The URL of a port that refuses connections: it is bound, so nobody else gets it, and does not listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def settings_for():
    def make(*urls, **limits):
        return Settings(urls=urls, **limits)

    return make
