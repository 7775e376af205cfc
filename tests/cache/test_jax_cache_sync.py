"""Entries of JAX's cache travel between folders signed and whole; what is not is refused and named."""

from __future__ import annotations

import os
import threading
import zlib
from dataclasses import replace

import pytest

from cache.artifact import Header, pack
from cache.audit import Audit
from cache.encryption import is_envelope
from cache.errors import StoreUnavailable, Untrusted
from cache.ingredients import digest_ingredients
from cache.jax_cache import JaxCache
from cache.jax_cache_sync import JaxCacheSync
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.quarantine import quarantined
from cache.settings import StoreSettings
from cache.signed_store import SignedStore
from cache.signing import Signer, Trust

NAMES = ["jit_f-01", "jit_g-02", "größe (b)-03"]
SIGNER = Signer.generate()
STRANGER = Signer.generate()


def content(name):
    return zlib.compress(b"\0\0\0\1" + name.encode() * 50)


def no_step():
    pass


@pytest.fixture
def inner(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.fixture
def store(inner):
    return SignedStore(inner, Trust.of([SIGNER.public]), SIGNER)


@pytest.fixture
def folder(tmp_path):
    """Gives a new folder with these entries."""

    def made(*names):
        cache = JaxCache(tmp_path / f"jax{len(list(tmp_path.iterdir()))}")
        cache.folder.mkdir()
        for name in names:
            cache.write(name, content(name))
        return cache

    return made


def synced(store, cache):
    return JaxCacheSync(store, cache, cache.entries())


def tear(cache, name):
    file = cache.folder / f"{name}-cache"
    file.write_bytes(content(name)[:-1])
    os.utime(file, (1, 1))


def push_all(store, cache):
    sync = synced(store, cache)
    return sync.push(sync.unpushed(), no_step)


def pull_all(store, cache):
    sync = synced(store, cache)
    return sync.pull(sync.missing(), no_step)


def holds(cache):
    return {name: cache.read(name) for name in cache.entries().whole}


def test_what_one_folder_has_another_gets(store, folder):
    first, second = folder(*NAMES), folder()
    assert push_all(store, first) == sorted(NAMES)
    pulled = pull_all(store, second)
    assert (sorted(pulled.new), pulled.mended, pulled.refused, pulled.damaged) == (sorted(NAMES), [], {}, {})
    assert holds(second) == {name: content(name) for name in NAMES}


def test_only_what_is_missing_travels(store, folder):
    first, second = folder(*NAMES[:2]), folder(*NAMES[1:])
    push_all(store, first)
    before = {entry.path: entry.modified_s for entry in store.entries("")}
    sync = synced(store, second)
    assert [sync.path_of(NAMES[0])] == sync.missing()
    assert sync.pull(sync.missing(), no_step).new == [NAMES[0]]
    assert sync.unpushed() == [NAMES[2]]
    assert sync.push(sync.unpushed(), no_step) == [NAMES[2]]
    after = {entry.path: entry.modified_s for entry in store.entries("")}
    assert after.items() > before.items()
    assert (sync.missing(), sync.unpushed()) == ([], [])


def test_a_step_is_told_for_each(store, folder):
    steps = []
    sync = synced(store, folder(*NAMES))
    sync.push(sync.unpushed(), lambda: steps.append("push"))
    sync = synced(store, folder())
    sync.pull(sync.missing(), lambda: steps.append("pull"))
    assert steps == ["push"] * 3 + ["pull"] * 3


def test_a_torn_entry_is_never_pushed_and_is_replaced_by_the_stores(store, folder):
    push_all(store, folder(NAMES[0]))
    torn = folder(*NAMES[1:])
    for name in NAMES[:2]:
        tear(torn, name)
    sync = synced(store, torn)
    assert sync.unpushed() == [NAMES[2]]
    pulled = sync.pull(sync.missing(), no_step)
    assert (pulled.new, pulled.mended) == ([], [NAMES[0]])
    assert list(sync.found.torn) == [NAMES[1]]
    assert sync.remove_torn() == [NAMES[1]]
    assert sync.found.torn == {}
    assert holds(torn) == {name: content(name) for name in (NAMES[0], NAMES[2])}


def test_an_entry_that_is_torn_after_it_was_looked_at_is_not_pushed(store, folder):
    cache = folder(*NAMES)
    sync = synced(store, cache)
    names = sync.unpushed()
    tear(cache, NAMES[0])
    (cache.folder / f"{NAMES[1]}-cache").unlink()  # as an eviction does
    assert sync.push(names, no_step) == [NAMES[2]]
    assert len(list(store.entries(""))) == 1


def test_what_may_be_just_being_written_is_left_for_the_next_time(store, folder):
    cache = folder()
    (cache.folder / f"{NAMES[0]}-cache").write_bytes(content(NAMES[0])[:-1])
    sync = synced(store, cache)
    assert sync.remove_torn() == []
    assert list(sync.found.torn) == [NAMES[0]]


# Trust


def test_what_a_stranger_signed_is_refused_and_the_rest_is_taken(store, inner, folder):
    push_all(SignedStore(inner, Trust.of([STRANGER.public]), STRANGER), folder(NAMES[0]))
    push_all(store, folder(NAMES[1]))
    cache = folder()
    pulled = pull_all(store, cache)
    assert pulled.new == [NAMES[1]]
    (path,) = pulled.refused
    assert path == synced(store, cache).path_of(NAMES[0])
    assert f"signed by the key {STRANGER.key_id[:16]}, which is not trusted here" in pulled.refused[path]
    assert holds(cache).keys() == {NAMES[1]}


def test_what_a_stranger_stored_is_not_replaced_or_moved(store, inner, folder):
    """It is good to somebody."""
    push_all(SignedStore(inner, Trust.of([STRANGER.public]), STRANGER), folder(NAMES[0]))
    before = {entry.path: inner.get(entry.path) for entry in inner.entries("")}
    cache = folder(NAMES[0])
    assert synced(store, cache).unpushed() == []
    assert {entry.path: inner.get(entry.path) for entry in inner.entries("")} == before


@pytest.mark.parametrize("distrusted", [True, False])
def test_a_distrusted_key_counts_no_more(store, folder, distrusted):
    push_all(store, folder(NAMES[0]))
    store.trust = replace(store.trust, distrusted=frozenset([SIGNER.key_id] if distrusted else []))
    assert len(pull_all(store, folder()).refused) == int(distrusted)


def test_nothing_is_pushed_unsigned_unless_that_is_allowed(inner, folder):
    with pytest.raises(Untrusted, match="give a signing key"):
        push_all(SignedStore(inner, Trust.of([SIGNER.public])), folder(*NAMES))
    assert list(inner.entries("")) == []
    anyone = SignedStore(inner, Trust(unsigned=True))
    push_all(anyone, folder(*NAMES))
    assert sorted(pull_all(anyone, folder()).new) == sorted(NAMES)
    assert len(pull_all(SignedStore(inner, Trust.of([SIGNER.public])), folder()).refused) == 3


def artifact_of(cache, name, data, **changes):
    """A signed artifact of an entry, with what a signer should never do."""
    ingredients = {"name": name, **cache.readers} | changes.pop("ingredients", {})
    fields = {"key": digest_ingredients(ingredients), "kind": "jax-cache", "ingredients": ingredients} | changes
    return f"{fields['key']}", pack(Header(**fields), data, SIGNER)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("../../outside", {}, "name: wanted 'that of a file', found '../../outside'"),
        (".lockfile", {}, "wanted 'that of a file'"),
        ("", {}, "wanted 'that of a file'"),
        ("jit_f-01", {"kind": "program"}, "kind: wanted 'jax-cache', found 'program'"),
        ("jit_f-01", {"ingredients": {"compression": "zstd"}}, "compression: wanted 'zlib', found 'zstd'"),
        ("jit_f-01", {"ingredients": {"cpu_features": "sve"}}, "cpu_features: wanted"),
        ("jit_f-01", {"ingredients": {"more": "x"}}, "more: wanted ''"),
        ("jit_f-01", {"key": "0" * 64}, "key: wanted"),
    ],
)
def test_what_is_signed_and_is_not_what_it_should_be_is_refused(store, inner, folder, tmp_path, name, changes, reason):
    cache = folder()
    key, data = artifact_of(cache, name, content("x"), **changes)
    place = synced(store, cache).path_of("x").rpartition("/")[0]
    inner.put(f"{place}/{key}", data)
    before = sorted(tmp_path.rglob("*"))
    (path,) = synced(store, cache).missing()
    pulled = pull_all(store, cache)
    assert (pulled.new, pulled.damaged) == ([], {})
    assert reason in pulled.refused[path]
    assert sorted(tmp_path.rglob("*")) == before


def test_an_entry_in_anothers_place_is_refused(store, inner, folder):
    cache = folder(*NAMES[:2])
    push_all(store, cache)
    first, second = (synced(store, cache).path_of(name) for name in NAMES[:2])
    inner.put(first, inner.get(second))
    pulled = pull_all(store, folder())
    assert (pulled.new, list(pulled.refused)) == ([NAMES[1]], [first])


# Damage


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:300] + b"x" + data[301:]]
)
def test_what_is_damaged_in_the_store_is_set_aside_and_stored_anew(tmp_path, inner, folder, damage):
    log_file = tmp_path / "audit"
    store = SignedStore(inner, Trust.of([SIGNER.public]), SIGNER, audit=Audit(str(log_file)))
    push_all(store, folder(*NAMES))
    path = synced(store, folder()).path_of(NAMES[0])
    inner.put(path, damage(inner.get(path)))
    cache = folder()
    sync = synced(store, cache)
    pulled = sync.pull(sync.missing(), no_step)
    assert (sorted(pulled.new), list(pulled.damaged)) == (sorted(NAMES[1:]), [path])
    assert sync.set_aside(pulled.damaged) == [path]
    assert [kept.path for kept in quarantined(store.bottom)] == [path]
    assert '"event":"quarantine"' in log_file.read_text()
    assert sync.unpushed() == []  # it does not have it either
    assert push_all(store, folder(*NAMES)) == [NAMES[0]]
    assert pull_all(store, cache).new == [NAMES[0]]


def test_an_entry_that_was_pushed_torn_is_damaged(store, inner, folder):
    """By who did not look, as this project's own push does."""
    cache = folder()
    key, data = artifact_of(cache, NAMES[0], content(NAMES[0])[:-1])
    path = synced(store, cache).path_of(NAMES[0])
    assert path.endswith(key)
    inner.put(path, data)
    pulled = pull_all(store, cache)
    assert "cannot be decompressed" in pulled.damaged[path]
    assert holds(cache) == {}


def test_a_store_that_fails_in_between_ends_the_pull_and_leaves_whole_entries(store, inner, folder):
    push_all(store, folder(*NAMES))

    class Failing(LocalStore):
        asked = 0

        def get(self, path, *, bytes_max=None):
            Failing.asked += 1
            if Failing.asked == 2:
                raise StoreUnavailable("gone")
            return super().get(path, bytes_max=bytes_max)

    cache = folder()
    with pytest.raises(StoreUnavailable, match="gone"):
        pull_all(SignedStore(Failing(inner.root), store.trust), cache)
    assert cache.entries().torn == {}
    assert len(holds(cache)) <= 2


# Together


def test_many_jobs_that_sync_at_once_all_have_everything_in_the_end(inner, folder):
    names = [f"jit_{number}-0" for number in range(24)]
    caches = [folder(*names[start : start + 9]) for start in range(0, 24, 3)]
    together = threading.Barrier(len(caches))
    failures = []

    def work(cache):
        store = SignedStore(inner, Trust.of([SIGNER.public]), SIGNER)
        try:
            together.wait(30)
            pull_all(store, cache)
            push_all(store, cache)
            together.wait(30)
            pulled = pull_all(store, cache)
            assert (pulled.refused, pulled.damaged) == ({}, {})
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(cache,)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert all(holds(cache) == {name: content(name) for name in names} for cache in caches)
    assert len(inner.names(f"jax-cache/{inner.names('jax-cache')[0]}")) == 24


def test_entries_lie_encrypted_where_the_store_is(tmp_path, folder):
    (tmp_path / "key").write_bytes(os.urandom(32))
    settings = StoreSettings(store=str(tmp_path / "s"), allow_unsigned=True, encryption_key=str(tmp_path / "key"))
    push_all(open_store(settings), folder(*NAMES))
    stored = [entry.path for entry in open_store(settings).entries("")]
    assert len(stored) == 3
    assert all(is_envelope(open_store(settings).bottom.get(path)) for path in stored)
    assert sorted(pull_all(open_store(settings), folder()).new) == sorted(NAMES)
