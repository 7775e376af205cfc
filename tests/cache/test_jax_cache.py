"""JAX's folder: what is whole, as JAX sees it; what is torn is replaced or removed, and nothing else is touched."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
import types
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import jax_cache
from cache.errors import NotStored, StoreUnavailable
from cache.jax_cache import WRITTEN_S_MAX, JaxCache, compression, is_name
from tests.cache.jax_job import run_job

WHOLE = zlib.compress(b"\0\0\0\1" + os.urandom(1000))
ZSTD = b"\x28\xb5\x2f\xfd" + os.urandom(50)
NAME = "jit_f-0123"


@pytest.fixture
def cache(tmp_path):
    return JaxCache(tmp_path / "jax")


def put(cache, name, data, *, age_s=WRITTEN_S_MAX + 1):
    """Write an entry as JAX does, some time ago."""
    cache.folder.mkdir(exist_ok=True)
    file = cache.folder / f"{name}-cache"
    file.write_bytes(data)
    then_s = time.time() - age_s
    os.utime(file, (then_s, then_s))
    return file


def files(cache):
    return sorted(file.name for file in cache.folder.iterdir())


def test_a_folder_that_is_not_there_is_empty(cache):
    found = cache.entries()
    assert (found.whole, found.torn, found.other) == (set(), {}, set())
    assert not cache.folder.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        bytes(1000),
        WHOLE[:-1],
        WHOLE[:2],
        WHOLE[: len(WHOLE) // 2],
        WHOLE[: len(WHOLE) // 2] + bytes(len(WHOLE) - len(WHOLE) // 2),
        WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]),
        zlib.compress(b""),
        zlib.compress(b"\0\0\0\1"),
    ],
)
def test_what_jax_could_not_read_is_torn(cache, data):
    put(cache, NAME, data)
    put(cache, "jit_g-4567", WHOLE)
    found = cache.entries()
    assert found.whole == {"jit_g-4567"}
    assert list(found.torn) == [NAME]
    assert NAME in found.torn[NAME]


def test_what_another_pythons_jax_wrote_is_neither_whole_nor_torn_and_is_left_alone(cache):
    put(cache, NAME, ZSTD)
    assert cache.entries().other == {NAME}
    assert not cache.remove_torn(NAME)
    assert not cache.write(NAME, WHOLE)
    assert cache.read(NAME) == ZSTD


def test_only_entries_are_looked_at(cache):
    put(cache, NAME, WHOLE)
    for other in (".lockfile", f"{NAME}-atime", "xla_gpu_kernel_cache_file", "notes-cached", "-cache"):
        (cache.folder / other).write_bytes(b"")
    (cache.folder / "folder-cache").mkdir()
    found = cache.entries()
    assert (found.whole, found.torn) == ({NAME}, {})


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077], ids=oct)
def test_who_may_read_an_entry_the_umask_says_as_for_those_that_jax_writes(cache, umask):
    before = os.umask(umask)
    try:
        cache.write(NAME, WHOLE)
    finally:
        os.umask(before)
    assert (cache.folder / f"{NAME}-cache").stat().st_mode & 0o777 == 0o666 & ~umask


def test_an_entry_is_written_whole_or_not_at_all(cache, monkeypatch):
    assert cache.write(NAME, WHOLE)
    assert files(cache) == [f"{NAME}-cache"]

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match=r"JAX's cache .*/jax: No space left"):
        cache.write("jit_g-1", WHOLE)
    assert files(cache) == [f"{NAME}-cache"]


def test_a_whole_entry_is_never_overwritten_and_a_torn_one_is(cache):
    other = zlib.compress(b"\0\0\0\2" + b"another compile of the same")
    put(cache, NAME, WHOLE)
    assert not cache.write(NAME, other)
    assert cache.read(NAME) == WHOLE
    put(cache, NAME, WHOLE[:-1], age_s=0)
    assert cache.write(NAME, other)
    assert cache.read(NAME) == other
    assert files(cache) == [f"{NAME}-cache"]


def test_a_torn_entry_is_removed_with_its_time_and_a_whole_one_is_not(cache):
    put(cache, NAME, WHOLE[:-1])
    put(cache, "jit_g-1", WHOLE)
    for name in (NAME, "jit_g-1"):
        (cache.folder / f"{name}-atime").write_bytes(bytes(8))
    assert cache.remove_torn(NAME)
    assert not cache.remove_torn("jit_g-1")
    assert not cache.remove_torn("jit_h-1")
    assert files(cache) == ["jit_g-1-atime", "jit_g-1-cache"]


def test_what_may_be_just_being_written_is_left(cache):
    put(cache, NAME, WHOLE[:-1], age_s=WRITTEN_S_MAX / 2)
    assert list(cache.entries().torn) == [NAME]
    assert not cache.remove_torn(NAME)
    assert files(cache) == [f"{NAME}-cache"]


def test_where_jax_limits_the_size_an_entry_gets_the_time_of_its_use(cache):
    put(cache, "jit_g-1", WHOLE)
    (cache.folder / ".lockfile").write_bytes(b"")
    before_ns = time.time_ns()
    assert cache.write(NAME, WHOLE)
    accessed_ns = int.from_bytes((cache.folder / f"{NAME}-atime").read_bytes(), "little")
    assert before_ns <= accessed_ns <= time.time_ns()
    (cache.folder / ".lockfile").unlink()
    assert cache.write("jit_h-1", WHOLE)
    assert not (cache.folder / "jit_h-1-atime").exists()


def test_a_lock_that_is_never_given_back_is_not_waited_for_for_ever(cache, monkeypatch):
    monkeypatch.setattr(jax_cache, "LOCKED_S_MAX", 0.05)
    cache.folder.mkdir()
    (cache.folder / ".lockfile").write_bytes(b"")
    with (cache.folder / ".lockfile").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for change in (lambda: cache.write(NAME, b"content"), lambda: cache.remove_torn(NAME)):
            with pytest.raises(StoreUnavailable, match=r"another process holds \.lockfile"):
                change()
    assert [file.name for file in cache.folder.iterdir()] == [".lockfile"]


def test_nothing_changes_while_jax_holds_its_lock(cache):
    put(cache, NAME, WHOLE[:-1])
    (cache.folder / ".lockfile").write_bytes(b"")
    with (cache.folder / ".lockfile").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writer = threading.Thread(target=cache.write, args=(NAME, WHOLE))
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        assert cache.read(NAME) == WHOLE[:-1]
        fcntl.flock(lock, fcntl.LOCK_UN)
    writer.join(30)
    assert cache.read(NAME) == WHOLE


def test_what_killed_writes_left_is_removed_once_it_is_old(cache):
    put(cache, NAME, WHOLE)
    old, new = cache.folder / ".warmpool-old", cache.folder / ".warmpool-new"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (1, 1))
    assert cache.entries().whole == {NAME}
    assert files(cache) == [".warmpool-new", f"{NAME}-cache"]


def test_a_folder_that_is_a_file_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    cache = JaxCache(tmp_path / "file")
    for fail in (cache.entries, lambda: cache.write(NAME, WHOLE), lambda: cache.read(NAME)):
        with pytest.raises(StoreUnavailable, match=r"JAX's cache .*/file: (Not a directory|File exists)"):
            fail()


def test_an_entry_that_is_not_there_is_told_apart(cache):
    with pytest.raises(NotStored):
        cache.read(NAME)


@pytest.mark.parametrize("name", ["jit_f-0a", "jit__lambda_-0a", "a b (c)", "größe-0a", "a" * 240])
def test_a_name_is_whatever_a_file_may_be_called(cache, name):
    assert is_name(name)
    assert cache.write(name, WHOLE)
    assert cache.entries().whole == {name}


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../a", "/a", "a\0", "a" * 241, "ä" * 121, "\udc80"])
def test_a_name_that_leads_elsewhere_is_none(name):
    assert not is_name(name)


@given(st.text(max_size=300))
def test_whatever_is_a_name_stays_in_the_folder(tmp_path_factory, name):
    if is_name(name):
        cache = JaxCache(tmp_path_factory.mktemp("jax"))
        cache.write(name, WHOLE)
        assert [file.name for file in cache.folder.iterdir()] == [f"{name}-cache"]


# How JAX compresses


class _ZstdError(Exception):
    pass


def _reversing(data):
    if not data.endswith(b"!"):
        raise _ZstdError("torn")
    return data[-2::-1]


def test_the_compressor_is_looked_for_where_jax_does(monkeypatch):
    from jax._src import compilation_cache

    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert compression().name == "zlib"

    decompressor = types.SimpleNamespace(decompress=_reversing)
    library = types.SimpleNamespace(ZstdDecompressor=lambda: decompressor, ZstdError=_ZstdError)
    monkeypatch.setitem(sys.modules, "zstandard", library)
    monkeypatch.setattr(compilation_cache, "zstd", None)
    monkeypatch.setattr(compilation_cache, "zstandard", library)
    assert (compression().name, compression().error) == ("zstd", _ZstdError)
    assert compression().decompress(b"cba!") == compilation_cache.decompress_executable(b"cba!") == b"abc"

    newer = types.SimpleNamespace(decompress=lambda data: b"newer", ZstdError=_ZstdError)
    monkeypatch.setitem(sys.modules, "compression.zstd", newer)
    monkeypatch.setattr(compilation_cache, "zstd", newer)
    assert compression().decompress(b"") == compilation_cache.decompress_executable(b"") == b"newer"


def test_with_zstandard_what_was_compressed_with_zlib_is_the_other(cache, monkeypatch):
    library = types.SimpleNamespace(decompress=_reversing, ZstdError=_ZstdError)
    monkeypatch.setitem(sys.modules, "compression.zstd", library)
    zstd = JaxCache(cache.folder)
    put(zstd, "whole", ZSTD + b"!")
    put(zstd, "torn", ZSTD + b"?")
    put(zstd, "other", WHOLE)
    found = zstd.entries()
    assert (found.whole, set(found.torn), found.other) == ({"whole"}, {"torn"}, {"other"})


# With JAX itself


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder that a job filled, and the job."""
    folder = tmp_path_factory.mktemp("compiled")
    return folder, run_job(folder)


def test_every_entry_of_jax_is_whole_and_holds_machine_code(compiled):
    folder, job = compiled
    cache = JaxCache(folder)
    found = cache.entries()
    assert (len(found.whole), found.torn, found.other) == (job.requests, {}, set())
    code = [name for name in found.whole if b"\x7fELF" in cache.compression.decompress(cache.read(name))]
    assert len(code) > 1  # why trust matters


def test_jax_never_mends_what_is_torn_and_a_removal_does(compiled, tmp_path):
    """If this fails because JAX mends its cache, then this project need not."""
    folder, first = compiled
    cache = JaxCache(tmp_path)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    name = next(name for name in sorted(cache.entries().whole) if name.startswith("jit_solved-"))
    whole = cache.read(name)
    put(cache, name, whole[: len(whole) // 2])
    for _ in range(2):
        job = run_job(tmp_path)
        assert (job.requests - job.hits, job.digest) == (1, first.digest)
        assert "Error reading persistent compilation cache entry for 'jit_solved'" in job.warnings
    assert list(cache.entries().torn) == [name]
    assert cache.remove_torn(name)
    job = run_job(tmp_path)
    assert (job.requests - job.hits, job.warnings) == (1, "")
    job = run_job(tmp_path)
    assert (job.hits, job.digest) == (job.requests, first.digest)
