"""What every command for a store begins with, and how it shows how far it is."""

from __future__ import annotations

import argparse
import time

import pytest

from tests.warmpool.cared_store import SIGNER, CaredStore
from warmpool.cache_commands import opened
from warmpool.errors import WarmpoolError
from warmpool.settings import add_store_flags


def parsed(*flags):
    parser = argparse.ArgumentParser()
    add_store_flags(parser)
    return parser.parse_args(flags)


def test_the_store_of_the_flags_is_opened_with_the_keys_that_it_distrusts(tmp_path):
    cared = CaredStore(tmp_path)
    cared.publish()
    cared.bottom.put(f"distrusted/{SIGNER.key_id}", b"{}")
    store = opened.opened(parsed("--store", str(cared.bottom.root), *cared.trusting))
    assert store.trust.distrusted == {SIGNER.key_id}


@pytest.mark.parametrize(
    ("flags", "error", "words"),
    [
        ((), WarmpoolError, "store is not set"),
        (("--store", "/nowhere"), ValueError, "trusted_keys is not set"),
        (("--store", "s3://bucket", "--allow-unsigned"), ValueError, "the scheme 's3' is not known"),
        (("--store", "/nowhere", "--trusted-keys", "/nowhere/key"), ValueError, "public key /nowhere/key"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(flags, error, words, monkeypatch):
    monkeypatch.delenv("WARMPOOL_STORE", raising=False)
    with pytest.raises(error, match=words):
        opened.opened(parsed(*flags))


@pytest.mark.parametrize("command", ["ls", "verify", "gc", "fill", "distrust"])
@pytest.mark.parametrize("made", [(), (".",), ("leases", "wanted")], ids=["no folder", "an empty one", "no model"])
def test_of_a_store_where_nothing_was_published_no_command_says_that_all_is_well(tmp_path, capsys, command, made):
    """A folder that is not mounted, say, or a path that was mistyped."""
    cared = CaredStore(tmp_path)
    for name in made:
        (cared.bottom.root / name).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    outcome = cared.run(capsys, command, *([SIGNER.key_id] if command == "distrust" else []))
    assert (outcome.status, outcome.out) == (1, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"warmpool cache: {command}: store '{cared.bottom.root}' is not there, or nothing was publ")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_store_that_only_shares_a_cache_of_jax_is_cared_for_too(tmp_path, capsys):
    cared = CaredStore(tmp_path)
    cared.bottom.put("jax-cache/0123456789abcdef/k", b"damaged")
    assert [*cared.run(capsys, "verify", "--json").json()["faults"]] == ["jax-cache/0123456789abcdef/k"]


def test_who_is_not_watching_sees_nothing_of_what_is_quick(capsys):
    with opened.counting("verifying", 3) as step:
        for _ in range(3):
            step()
    assert capsys.readouterr() == ("", "")


def test_what_takes_longer_says_now_and_then_how_far_it_is(capsys, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    with opened.counting("verifying", 4) as step:
        for passed_s in (0.0, 2.5, 0.1, 5.0):
            now_s[0] += passed_s
            step()
    assert capsys.readouterr() == ("", "verifying: 2 of 4\nverifying: 4 of 4\n")


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (2 << 40, "2.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_bytes_are_shown_in_the_unit_that_fits(size, shown):
    assert opened.shown_bytes(size) == shown
