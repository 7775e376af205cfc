"""`warmpool cache keygen`: a key pair in two files, one of them secret, and never in the place of another."""

from __future__ import annotations

import json

import pytest

from cache.signing import Signer, key_id_of, read_public_keys
from tests.warmpool.command import assert_one_line, warmpool


def public_id(file):
    (key,) = read_public_keys([file])
    return key_id_of(key)


def test_it_writes_both_halves_and_tells_a_person_which_one_to_keep(tmp_path):
    file = tmp_path / "keys" / "publisher"
    result = warmpool("cache", "keygen", str(file))
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(path.name for path in file.parent.iterdir()) == ["publisher", "publisher.pub"]
    key_id = Signer.read(file).key_id
    assert public_id(file.with_name("publisher.pub")) == key_id
    assert result.stdout == f"wrote {file} (keep it secret) and {file}.pub\nkey id {key_id}\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_it_tells_a_program_the_same_and_never_the_secret(tmp_path):
    file = tmp_path / "key"
    result = warmpool("cache", "keygen", "--json", str(file))
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "private": str(file),
        "public": f"{file}.pub",
        "key_id": Signer.read(file).key_id,
    }
    assert file.read_text().splitlines()[1] not in result.stdout


def test_two_calls_make_two_keys(tmp_path):
    told = [json.loads(warmpool("cache", "keygen", str(tmp_path / name), "--json").stdout) for name in "ab"]
    assert told[0]["key_id"] != told[1]["key_id"]


@pytest.mark.parametrize("existing", ["key", "key.pub"])
def test_a_key_that_is_there_is_not_overwritten_neither_half(tmp_path, existing):
    (tmp_path / existing).write_text("precious")
    result = warmpool("cache", "keygen", str(tmp_path / "key"))
    assert_one_line(result, "cache", "keygen: ", f"{tmp_path / existing}: ", "File exists")
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "precious"


def test_what_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    assert_one_line(
        warmpool("cache", "keygen", str(tmp_path / "file" / "key")), "cache", str(tmp_path / "file" / "key")
    )
    assert_one_line(warmpool("cache", "keygen", str(tmp_path / ("x" * 300))), "cache", "File name too long")
