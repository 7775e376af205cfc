"""What the tests of functions share: running instances, and settings that point to them."""

import contextlib
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
def full_url():
    """The URL of a port whose queue of connections is full, so that the next one gets no answer at all."""
    with socket.socket() as listening, contextlib.ExitStack() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def settings_for():
    def make(*urls, **limits):
        return Settings(urls=urls, **limits)

    return make
