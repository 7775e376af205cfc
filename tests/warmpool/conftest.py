"""What the tests of warmpool share: a store with small models, and instances that serve it."""

import shutil

import msgspec
import pytest

from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from tests.instance_process import serving
from tests.once import once
from tests.ports import free_port
from tests.tiny import publish_tiny
from tests.warmpool.large import publish_large
from tests.warmpool.line_versions import VERSIONS
from tests.warmpool.line_versions import publish as publish_line
from tests.warmpool.line_versions import serve as serve_line
from tests.warmpool.lines_instance import Lines


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """The folder of a store with the models `tiny` and `second`, and the fingerprint they were compiled for."""

    def make(folder):
        store = LocalStore(folder / "store")
        publish_tiny(store, "second", ("predict",))
        fingerprint = publish_tiny(store)
        (folder / "fingerprint.json").write_bytes(msgspec.json.encode(dict(fingerprint.ingredients)))

    folder = once(tmp_path_factory, "tiny", make)
    return folder / "store", Fingerprint(msgspec.json.decode((folder / "fingerprint.json").read_bytes()))


@pytest.fixture(scope="session")
def tiny_store(published):
    """The folder of a store that no test changes."""
    return published[0]


@pytest.fixture(scope="session")
def fingerprint(published):
    return published[1]


@pytest.fixture(scope="session")
def large_store(tmp_path_factory):
    """The folder of a store with models that take much memory, which no test changes."""
    return once(tmp_path_factory, "large", publish_large) / "store"


@pytest.fixture
def own_store(tiny_store, tmp_path):
    """A copy that a test may damage, of what was published: without what instances of other tests have counted."""
    return shutil.copytree(tiny_store, tmp_path / "store", ignore=shutil.ignore_patterns("traffic"))


@pytest.fixture(scope="module")
def port():
    """For an instance that speaks gRPC, too."""
    return free_port()


@pytest.fixture(scope="module")
def instance(tiny_store, tmp_path_factory):
    """A warm instance that the tests of one file share."""
    log_file = tmp_path_factory.mktemp("instance") / "log"
    with serving(tiny_store, log_file) as running:
        yield running


@pytest.fixture(scope="session")
def lines(tmp_path_factory):
    """The folder of a store with all lines, of which the first is served."""

    def make(folder):
        store = LocalStore(folder / "store")
        for version, line in VERSIONS.items():
            publish_line(store, version, line)
        serve_line(store, "1")

    return once(tmp_path_factory, "lines", make) / "store"


@pytest.fixture
def store(lines, tmp_path):
    """A copy of it that a test may change."""
    return LocalStore(shutil.copytree(lines, tmp_path / "store"))


@pytest.fixture
def running(store, tmp_path):
    """A warm instance of that."""
    with Lines(store, tmp_path) as instance:
        instance.wait_warm()
        yield instance
