"""An audit log has whole lines whoever shares it, says who acted and when, and never stops the work."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.audit import LINE_BYTES_MAX, Audit, acting
from cache.document import seal
from cache.errors import Untrusted
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signing import Signer

WHO = "ada@build-7"


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def at(moment):
    return lambda: moment


def test_a_line_says_when_what_who_and_the_rest(tmp_path):
    berlin = timezone(timedelta(hours=1))
    audit = Audit(str(tmp_path / "log"), WHO, at(datetime(2026, 11, 30, 7, 3, 9, 412_900, tzinfo=berlin)))
    audit.record("promote", model="embed", version="2", before="1")
    (line,) = lines(tmp_path / "log")
    assert line == {
        "time": "2026-11-30T06:03:09.412Z",
        "event": "promote",
        "who": WHO,
        "pid": os.getpid(),
        "model": "embed",
        "version": "2",
        "before": "1",
    }


@pytest.mark.parametrize("who", ["a" * 5000, "\0" * 5000, "\udcff" * 5000, "\N{GRINNING FACE}" * 5000])
def test_a_name_of_any_length_and_content_leaves_room_for_what_was_done(tmp_path, who):
    Audit(str(tmp_path / "log"), who).record("refuse", path="p" * 5000, reason="\0" * 5000)
    (line,) = lines(tmp_path / "log")
    assert 0 < len(line["who"]) <= 256
    assert line["event"] == "refuse"
    assert line["path"].startswith("ppp")
    assert len((tmp_path / "log").read_bytes()) <= LINE_BYTES_MAX


def test_a_whole_second_still_has_its_milliseconds(tmp_path):
    Audit(str(tmp_path / "log"), WHO, at(datetime(2026, 1, 2, tzinfo=UTC))).record("load")
    assert lines(tmp_path / "log")[0]["time"] == "2026-01-02T00:00:00.000Z"


_WRITER = """
import sys
from cache.audit import LINE_BYTES_MAX, Audit, acting
from cache.document import seal
from cache.errors import Untrusted
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signing import Signer
audit = Audit(sys.argv[1], sys.argv[2])
sys.stdin.read()
for number in range(200):
    audit.record("load", key=f"{number}", reason="x" * (number * 20))
"""


def test_processes_that_share_a_file_do_not_tear_each_others_lines(tmp_path):
    file = tmp_path / "log"
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(file), f"w{number}"], stdin=subprocess.PIPE)
        for number in range(4)
    ]
    for writer in writers:
        assert writer.stdin
        writer.stdin.close()  # all begin when all are there
    assert [writer.wait(60) for writer in writers] == [0] * 4
    found = lines(file)
    for number in range(4):
        assert [line["key"] for line in found if line["who"] == f"w{number}"] == [str(each) for each in range(200)]
    assert len(found) == 800


@given(st.dictionaries(st.sampled_from(["reason", "path", "model", "key"]), st.text(max_size=9000), max_size=4))
def test_any_line_is_one_line_of_json_that_a_pipe_keeps_whole(tmp_path_factory, fields):
    file = tmp_path_factory.mktemp("audit") / "log"
    Audit(str(file), WHO).record("refuse", **fields)
    data = file.read_bytes()
    assert len(data) <= LINE_BYTES_MAX
    assert data.count(b"\n") == 1
    line = json.loads(data)
    for name, value in fields.items():
        assert line[name] == value or (line[name].endswith("…") and value.startswith(line[name][:-1]))


def test_a_short_field_survives_a_reason_that_is_too_long(tmp_path):
    Audit(str(tmp_path / "log"), WHO).record("refuse", key="k" * 64, reason="why " * 5000)
    (line,) = lines(tmp_path / "log")
    assert line["key"] == "k" * 64
    assert line["reason"].startswith("why why")
    assert line["reason"].endswith("…")


def test_a_log_that_was_rotated_is_begun_anew(tmp_path):
    file = tmp_path / "log"
    audit = Audit(str(file), WHO)
    audit.record("load", key="1")
    file.rename(tmp_path / "log.1")
    audit.record("load", key="2")
    assert [line["key"] for line in lines(file)] == ["2"]


def test_without_a_destination_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Audit().record("load", key="1")
    assert list(tmp_path.iterdir()) == []


def test_a_dash_is_standard_output():
    code = "from cache.audit import Audit; Audit('-', 'me').record('distrust', key_id='ab')"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout
    assert json.loads(printed)["key_id"] == "ab"


def test_a_place_that_cannot_be_written_is_a_wrong_setting(tmp_path):
    with pytest.raises(ValueError, match=r"audit_log '.*/none/log': it cannot be written \(No such file"):
        Audit(str(tmp_path / "none" / "log"))


def test_a_log_that_fails_later_stops_nothing_and_is_reported_once_for_as_long_as_it_fails(tmp_path, caplog):
    folder = tmp_path / "logs"
    folder.mkdir()
    audit = Audit(str(folder / "log"), WHO)

    def lose(*keys):
        (folder / "log").unlink()
        folder.rmdir()
        for key in keys:
            audit.record("load", key=key)
        folder.mkdir()

    with caplog.at_level(logging.ERROR):
        lose("1", "2", "3")
        audit.record("load", key="4")
        lose("5", "6")
    assert audit.lost == 5
    assert [json.loads(record.line)["key"] for record in caplog.records] == ["1", "5"]
    assert {record.reason for record in caplog.records} == {"No such file or directory"}


def test_half_a_line_costs_no_other(tmp_path, caplog):
    """A full disk takes a part of a write: here one that takes no more than so many bytes."""
    file = tmp_path / "log"
    code = """
import resource, signal, sys
from cache.audit import LINE_BYTES_MAX, Audit, acting
from cache.document import seal
from cache.errors import Untrusted
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signing import Signer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
audit = Audit(sys.argv[1], "me")
audit.record("load", key="1")
size = len(open(sys.argv[1], "rb").read())
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, most))
audit.record("load", key="2")
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
audit.record("load", key="3")
assert audit.lost == 1
"""
    subprocess.run([sys.executable, "-c", code, str(file)], check=True, timeout=60, capture_output=True)
    first, torn, third = file.read_text().splitlines()
    assert (json.loads(first)["key"], torn, json.loads(third)["key"]) == ("1", '{"time":"2', "3")


def test_a_pipe_that_nobody_reads_does_not_make_anybody_wait(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        audit = Audit(str(pipe), WHO)
        for _ in range(100):
            audit.record("load", reason="x" * 3000)  # a pipe holds 64 KiB
        assert audit.lost > 50
    finally:
        os.close(reader)


def test_on_cloud_run_the_revision_acts_elsewhere_a_user_on_a_host():
    assert acting({"K_REVISION": "embed-00042-abc"}) == "embed-00042-abc"
    user, _, host = acting({}).partition("@")
    assert user
    assert host == os.uname().nodename


def test_a_store_tells_its_log_what_it_refused(tmp_path):
    log_file = tmp_path / "log"
    signer = Signer.generate()
    LocalStore(tmp_path / "store").put("models/m/serving.json", seal("models/m/serving.json", b"{}\n", signer))
    trusted = Signer.generate().write(tmp_path / "key")
    store = open_store(StoreSettings(store=str(tmp_path / "store"), trusted_keys=str(trusted), audit_log=str(log_file)))
    with pytest.raises(Untrusted):
        store.get("models/m/serving.json")
    (line,) = lines(log_file)
    assert (line["event"], line["path"], line["who"]) == ("refuse", "models/m/serving.json", acting(os.environ))
    assert line["reason"] == f"it is signed by the key {signer.key_id[:16]}, which is not trusted here"
