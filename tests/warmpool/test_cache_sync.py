"""`warmpool cache sync` gives one machine's compiles to another, and mends what JAX would miss for ever."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from cache.jax_cache import JaxCache
from cache.signing import Signer
from tests.cache.gcs_server import GcsServer
from tests.cache.jax_job import run_job
from tests.warmpool.command import assert_one_line, in_process, warmpool


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder that a job filled, and the job."""
    folder = tmp_path_factory.mktemp("compiled")
    return folder, run_job(folder)


@pytest.fixture(scope="module")
def bucket():
    with GcsServer() as server:
        server.client().create_bucket("shared")
        yield server


@pytest.fixture(params=["folder"])
def sync(request, tmp_path):
    """Runs the command with the same store, and gives its exit status and its summary."""
    Signer.generate().write(tmp_path / "key")
    uri, environment = str(tmp_path / "store"), {}
    if request.param == "bucket":
        uri = f"gs://shared/{tmp_path.name}"
        environment["STORAGE_EMULATOR_HOST"] = request.getfixturevalue("bucket").url

    def run(folder, *flags, key="key", trusted=""):
        keys = ("--trusted-keys", str(tmp_path / trusted)) if trusted else ("--signing-key", str(tmp_path / key))
        arguments = ("--jax-cache", str(folder), uri, "--json", *keys, *flags)
        result = in_process("cache", "sync", *arguments, **environment)
        assert result.stdout, result.stderr
        return result.returncode, json.loads(result.stdout)

    return run


def copied(compiled, folder):
    shutil.copytree(compiled[0], folder)
    return folder


def tear(folder, prefix):
    """Cut an entry as a killed process leaves it, some time ago; its name."""
    file = next(
        file for file in sorted(folder.iterdir()) if file.name.startswith(prefix) and file.name.endswith("-cache")
    )
    file.write_bytes(file.read_bytes()[:-20])
    os.utime(file, (1, 1))
    return file.name.removesuffix("-cache")


@pytest.mark.parametrize("sync", ["folder", "bucket"], indirect=True)
def test_a_job_on_another_machine_compiles_nothing_and_answers_bit_for_bit_the_same(compiled, sync, tmp_path):
    folder, first = compiled
    assert first.hits == 0 < first.requests
    status, pushed = sync(folder)
    names = sorted(JaxCache(folder).entries().whole)
    assert (status, sorted(pushed["pushed"]), pushed["pulled"]) == (0, names, [])
    other = tmp_path / "other"
    status, pulled = sync(other)
    assert (status, sorted(pulled["pulled"]), pulled["pushed"]) == (0, names, [])
    second = run_job(other)
    assert (second.requests, second.hits, second.digest) == (first.requests, first.requests, first.digest)
    assert second.warnings == ""
    status, again = sync(other)
    assert (status, again["pulled"], again["pushed"], again["entries"]) == (0, [], [], len(names))


def test_a_torn_entry_is_mended_from_the_store_and_hit_again(compiled, sync, tmp_path):
    folder, first = compiled
    sync(folder, "--push")
    torn = copied(compiled, tmp_path / "torn")
    name = tear(torn, "jit_solved-")
    missed = run_job(torn)
    assert missed.requests - missed.hits == 1
    status, summary = sync(torn)
    assert (status, summary["mended"], summary["removed"], summary["pushed"]) == (0, [name], [], [])
    mended = run_job(torn)
    assert (mended.hits, mended.digest, mended.warnings) == (first.requests, first.digest, "")


def test_a_torn_entry_that_the_store_lacks_is_removed_compiled_once_and_shared(compiled, sync, tmp_path):
    _, first = compiled
    torn = copied(compiled, tmp_path / "torn")
    name = tear(torn, "jit_solved-")
    status, summary = sync(torn)
    assert (status, summary["mended"], summary["removed"]) == (0, [], [name])
    assert name not in summary["pushed"]
    job = run_job(torn)
    assert (job.requests - job.hits, job.digest) == (1, first.digest)
    status, summary = sync(torn)
    assert (status, summary["pushed"]) == (0, [name])


def test_pull_alone_changes_nothing_in_the_store_and_push_alone_nothing_in_the_folder(compiled, sync, tmp_path):
    folder = copied(compiled, tmp_path / "mine")
    status, summary = sync(folder, "--pull")
    assert (status, summary["pulled"], summary["pushed"]) == (0, [], [])
    assert len(sync(folder, "--push")[1]["pushed"]) == compiled[1].requests
    status, summary = sync(tmp_path / "empty", "--push")
    assert (status, summary["pulled"], summary["pushed"]) == (0, [], [])
    assert not (tmp_path / "empty").exists()
    # Whoever only pulls needs no key that signs.
    status, summary = sync(tmp_path / "empty", "--pull", trusted="key.pub")
    assert (status, len(summary["pulled"])) == (0, compiled[1].requests)


def test_what_is_signed_by_a_key_that_is_not_trusted_is_refused_and_the_status_says_so(compiled, sync, tmp_path):
    sync(compiled[0])
    Signer.generate().write(tmp_path / "another")
    status, summary = sync(tmp_path / "empty", key="another")
    assert (status, summary["pulled"], len(summary["refused"])) == (1, [], compiled[1].requests)
    assert all("which is not trusted here" in reason for reason in summary["refused"].values())
    assert not (tmp_path / "empty").exists()


def test_jax_goes_on_where_it_limits_the_size_of_what_was_pulled(compiled, sync, tmp_path):
    """With an entry whose time of use is not known, an eviction would begin with it."""
    pytest.importorskip("filelock", reason="JAX limits the size with it, and does not require it")
    folder, first = compiled
    sync(folder, "--push")
    limited = tmp_path / "limited"
    assert sync(limited)[0] == 0
    size_bytes = sum(file.stat().st_size for file in limited.iterdir())
    job = run_job(limited, JAX_COMPILATION_CACHE_MAX_SIZE=str(size_bytes))
    assert (job.hits, job.warnings) == (first.requests, "")
    name = tear(limited, "jit_solved-")
    assert sync(limited)[1]["mended"] == [name]
    assert (limited / f"{name}-atime").stat().st_size == 8
    job = run_job(limited, JAX_COMPILATION_CACHE_MAX_SIZE=str(size_bytes))
    assert (job.hits, job.warnings, job.digest) == (first.requests, "", first.digest)


def test_a_person_is_told_in_lines(compiled, tmp_path):
    Signer.generate().write(tmp_path / "key")
    arguments = (str(tmp_path / "store"), "--signing-key", str(tmp_path / "key"))
    result = warmpool("cache", "sync", "--jax-cache", str(compiled[0]), *arguments)
    count = compiled[1].requests
    assert result.stdout == f"{compiled[0]}: pulled 0, mended 0, removed 0, pushed {count}; {count} entries\n"
    assert result.returncode == 0
    Signer.generate().write(tmp_path / "another")
    arguments = (str(tmp_path / "store"), "--signing-key", str(tmp_path / "another"))
    result = warmpool("cache", "sync", "--jax-cache", str(tmp_path / "empty"), *arguments)
    lines = result.stdout.splitlines()
    assert len(lines) == 1 + count
    assert all(line.startswith("not taken jax-cache/") for line in lines[1:])
    assert result.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--jax-cache", "gs://bucket/jax", "store", "--allow-unsigned"), ("--jax-cache", "a folder of this machine")),
        (("--jax-cache", "jax", "--allow-unsigned"), ("store is not set",)),
        (("--jax-cache", "jax", "store"), ("trusted_keys is not set",)),
        (("--jax-cache", __file__, "store", "--allow-unsigned"), ("JAX's cache", "Not a directory")),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = in_process("cache", "sync", *arguments)
    result.stderr = "\n".join(line for line in result.stderr.splitlines() if "UNSIGNED content" not in line)
    assert_one_line(result, "cache", *words)


def test_the_folder_has_to_be_named():
    result = in_process("cache", "sync", "store")
    assert result.returncode == 2
    assert "--jax-cache" in result.stderr
