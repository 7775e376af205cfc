"""A bucket as a store, with the real client and a real server, and between the two a network that fails as networks do.

What the server leaves out is said in `benchmarks.gameday.gcs_server`; what is sent to it is looked at instead.
"""

from __future__ import annotations

import base64
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gameday.fault_proxy import (
    FaultProxy,
    answers,
    broken_after,
    changed,
    done_but,
    hanging,
    lost,
    passed,
    trickling,
)
from benchmarks.gameday.gcs_server import client_of
from cache.errors import NotStored, StoreUnavailable
from cache.fetching import DOWNLOADS_PARALLEL, fetch_all
from cache.gcs_download import Patience
from cache.gcs_errors import TOLD_MAX
from cache.gcs_store import PUT_IF_BYTES_MAX, GcsStore
from cache.opening import raw_store
from tests.cache.store_contract import LARGE_BYTES, StoreContract, end, read
from tests.cache.store_place import Place, start
from tests.ports import free_port

SHORT = Patience(connect_s_max=5, read_s_max=5, retry_s_max=0.4)  # and to the end, so that the fault is what is told
STEADY = Patience(connect_s_max=5, read_s_max=2, retry_s_max=10)  # a failure is none of a busy machine
LONGEST_S = 60.0  # a call with the shorter patience, on a busy machine
PATH = "executables/k"
CONTENT = os.urandom(300_000)


class TestContract(StoreContract):
    # The server does not compare: see below what it is asked.
    test_a_conditional_delete_leaves_what_was_not_seen = None  # type: ignore[assignment]

    @pytest.fixture
    def place(self, gcs, bucket):
        return Place(url=gcs.url, bucket=bucket)


@pytest.fixture
def proxy(gcs):
    with FaultProxy(gcs) as proxy:
        yield proxy


@pytest.fixture
def store(proxy, bucket):
    """A store behind the proxy, with an object that was put before."""
    GcsStore(bucket, "folder", proxy.upstream.client()).put(PATH, CONTENT)
    return GcsStore(bucket, "folder", client_of(proxy.url), STEADY)


@pytest.fixture
def hurried(store):
    """Makes the same with less patience than any fault lasts."""
    return lambda fault: store.with_patience(replace(SHORT, read_s_max=READ_S_MAX.get(fault, SHORT.read_s_max)))


READS = {
    "get": lambda store: store.get(PATH),
    "get_versioned": lambda store: store.get_versioned(PATH)[0],
    "local_path": lambda store: store.local_path(PATH).read_bytes(),
}
CALLS = READS | {
    "get the start": lambda store: store.get(PATH, bytes_max=10),
    "put": lambda store: store.put("a", b"x"),
    "put_file": lambda store: store.put_file("a", Path(__file__)),
    "delete": lambda store: store.delete(PATH),
    "names": lambda store: store.names("executables"),
    "entries": lambda store: list(store.entries("")),
    "put_if": lambda store: store.put_if("a", b"x", None),
    "delete_if": lambda store: store.delete_if(PATH, "1"),
}


# What passes by itself


@pytest.mark.parametrize(
    "fault",
    [
        answers(503),
        answers(429),
        answers(500),
        answers(502, body=b"<html>a proxy's page</html>"),
        broken_after(100_000, reset=True),
        broken_after(100_000, reset=False),
        broken_after(0, reset=True),
        changed,
        trickling,
        lost,
        hanging,
    ],
    ids=lambda fault: fault.__name__,
)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_passes_by_itself_is_not_seen_by_who_reads(store, proxy, fault, read):
    proxy.script.extend([fault])
    assert read(store) == CONTENT
    assert not proxy.script
    assert len(proxy.seen) >= 2


@pytest.mark.parametrize("fault", [answers(503), answers(429), lost], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", [name for name in CALLS if name != "delete_if"])
def test_every_call_is_tried_again(store, proxy, fault, name):
    proxy.script.extend([fault, fault])
    CALLS[name](store)
    assert len(proxy.seen) >= 3


def test_a_download_that_broke_off_goes_on_where_it_stopped_and_is_checked_as_a_whole(store, proxy):
    proxy.script.extend([broken_after(100_000, reset=False), broken_after(50_000, reset=False)])
    assert store.get(PATH) == CONTENT
    assert [seen.headers.get("range") for seen in proxy.seen] == [None, "bytes=100000-", "bytes=150000-"]
    proxy.seen.clear()
    proxy.script.extend([broken_after(100_000, reset=False), changed])
    assert store.get(PATH) == CONTENT
    assert [seen.headers.get("range") for seen in proxy.seen] == [None, "bytes=100000-", None]


def test_a_download_does_not_go_on_with_another_object_that_took_the_place(store, proxy, bucket):
    new = os.urandom(200_000)

    def replaced_after(call):
        call.ask()
        proxy.upstream.client().bucket(bucket).blob(f"folder/{PATH}").upload_from_string(new)
        broken_after(100_000, reset=False)(call)

    proxy.script.extend([replaced_after])
    assert store.get(PATH) == new
    asked = [seen.path for seen in proxy.seen if seen.method == "GET"]
    assert "generation=" in asked[1]
    assert "generation=" not in asked[2]


def test_a_server_that_does_not_go_on_in_the_middle_begins_again(store, proxy):
    def whole_again(call):
        del call.headers["Range"]
        passed(call)

    proxy.script.extend([broken_after(100_000, reset=True), whole_again])
    assert store.get(PATH) == CONTENT
    assert len(proxy.seen) == 2
    proxy.script.extend([whole_again])
    assert store.get(PATH, bytes_max=1000) == CONTENT[:1000]


# What does not


REASONS = {
    "503": (answers(503, "try later"), "GCS answered 503: try later$"),
    "429": (answers(429, "slow down"), "GCS answered 429: slow down$"),
    "403": (answers(403, "may not"), "GCS answered 403: may not$"),
    "400": (answers(400, "odd"), "GCS answered 400: odd$"),
    "html": (answers(502, body=b"<html>a proxy's page</html>"), "GCS answered 502$"),
    "reset": (broken_after(0, reset=True), "GCS cannot be reached: Connection reset by peer$"),
    "cut": (broken_after(0, reset=False), "GCS cannot be reached: the connection broke off$"),
    "changed": (changed, "what arrived has the checksum [^ ]{8}, what is stored [^ ]{8}$"),
    "trickling": (trickling, r"GCS sent \d+ bytes in \d\.\d s$"),
    "lost": (lost, "GCS cannot be reached: "),
    "hanging": (hanging, "GCS did not answer in time$"),
}
READ_S_MAX = {"trickling": 1.0, "hanging": 0.25}  # where what is told is that an answer takes longer


@pytest.mark.parametrize("name", REASONS)
def test_what_stays_is_unavailable_with_the_reason_and_before_long(hurried, proxy, name):
    fault, reason = REASONS[name]
    proxy.script.extend([fault] * 1000)
    started_s = time.monotonic()
    with pytest.raises(StoreUnavailable, match=rf"^'{PATH}': {reason}"):
        hurried(name).get(PATH)
    assert time.monotonic() - started_s < LONGEST_S


@pytest.mark.parametrize("fault", ["503", "403", "hanging"])
@pytest.mark.parametrize("name", CALLS)
def test_every_call_says_so(hurried, proxy, name, fault):
    proxy.script.extend([REASONS[fault][0]] * 1000)
    started_s = time.monotonic()
    with pytest.raises(StoreUnavailable, match=rf"^'[\w/.]+': {REASONS[fault][1]}"):
        CALLS[name](hurried(fault))
    assert time.monotonic() - started_s < LONGEST_S


@pytest.mark.parametrize("status", [400, 403])
def test_what_no_other_try_helps_against_is_asked_once(store, proxy, status):
    proxy.script.extend([answers(status)] * 1000)
    with pytest.raises(StoreUnavailable):
        store.get(PATH)
    assert len(proxy.seen) == 1


@pytest.mark.parametrize("name", CALLS)
def test_a_server_that_is_not_there_is_unavailable(bucket, name):
    store = GcsStore(bucket, "", client_of(f"http://127.0.0.1:{free_port()}"), SHORT)
    with pytest.raises(StoreUnavailable, match=r"GCS cannot be reached: Connection refused$"):
        CALLS[name](store)


@pytest.mark.parametrize("name", ["names", "entries", "put", "put_file", "put_if"])
def test_a_bucket_that_is_not_there_is_unavailable_not_empty(gcs, name):
    store = GcsStore("no-such-bucket", "", gcs.client(), STEADY)
    with pytest.raises(StoreUnavailable, match="GCS answered 404"):
        CALLS[name](store)


def test_nothing_is_told_that_lets_others_in(store, proxy):
    secrets = "ya29.A-b_c https://x.test/up?upload_id=AB Bearer abc.def token=q1 'access_token': 'q2' eyJhbGciOi.J9.q3"
    for fault in (answers(403, secrets), answers(403, body=secrets.encode())):
        proxy.script.extend([fault])
        with pytest.raises(StoreUnavailable) as caught:
            store.get(PATH)
        shown = "".join(traceback.format_exception(caught.value))
        assert "GCS answered 403" in shown
        assert not [word for word in ("A-b_c", "AB", "abc.def", "q1", "q2", "q3", "x.test", proxy.url) if word in shown]


def test_a_long_answer_is_told_in_part_and_in_one_line(store, proxy):
    proxy.script.extend([answers(403, body=b"a line\n" * 1000)])
    with pytest.raises(StoreUnavailable) as caught:
        store.get(PATH)
    assert len(str(caught.value)) < TOLD_MAX + 60
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_credentials_that_cannot_be_used_are_told_without_what_they_are(store, proxy):
    proxy.script.extend([answers(401, body=b"")])
    with pytest.raises(StoreUnavailable, match="the credentials for GCS cannot be used: Anonymous credentials"):
        store.get(PATH)
    gc.collect()  # google-auth drops the 401 that made it refresh them, unread


# On a condition


@pytest.mark.parametrize("fault", [lost, done_but(503), done_but(500)], ids=["lost", "503", "500"])
def test_a_conditional_put_whose_answer_was_lost_is_known_to_have_won(store, proxy, fault):
    proxy.script.extend([fault])
    first = store.put_if("leases/a", b"ours", None)
    assert store.get_versioned("leases/a") == (b"ours", first)
    proxy.script.extend([fault, fault])
    second = store.put_if("leases/a", b"ours again", first)
    assert store.get_versioned("leases/a") == (b"ours again", second)


@pytest.mark.parametrize("fault", [lost, done_but(503)], ids=["lost", "503"])
def test_a_conditional_put_whose_answer_was_lost_and_that_was_overtaken_has_lost(gcs, store, proxy, bucket, fault):
    other = GcsStore(bucket, "folder", gcs.client())

    def overtaken(call):
        call.ask()
        other.put("leases/a", b"theirs")
        fault(call)

    proxy.script.extend([overtaken])
    assert store.put_if("leases/a", b"ours", None) is None
    assert store.get("leases/a") == b"theirs"


def test_a_conditional_put_that_was_refused_is_lost_also_where_the_content_is_the_same(store, proxy):
    store.put("leases/a", b"same")
    proxy.seen.clear()
    assert store.put_if("leases/a", b"same", None) is None
    assert len(proxy.seen) == 1


def test_a_conditional_put_that_never_gets_an_answer_is_unavailable_not_lost(hurried, proxy):
    proxy.script.extend([lost] * 1000)
    with pytest.raises(StoreUnavailable):
        hurried("lost").put_if("leases/a", b"ours", None)


def test_what_is_expected_is_asked_for(store, proxy):
    generation = store.put_if("leases/a", b"x", None)
    store.put_if("leases/a", b"y", generation)
    store.delete_if("leases/a", generation)
    queries = [parse_qs(urlsplit(seen.path).query) for seen in proxy.seen]
    assert [query.get("ifGenerationMatch") for query in queries] == [["0"], [generation], [generation]]


@pytest.mark.parametrize(
    ("script", "had"),
    [
        ([answers(412)], False),
        ([answers(503), answers(412)], False),
        ([lost], True),  # the next try finds nothing, since the first one did it
        ([done_but(503), lost], True),
        ([answers(404)], False),
    ],
    ids=["other", "other later", "lost", "lost twice", "none"],
)
def test_a_conditional_delete_says_whether_it_was_the_one(store, proxy, script, had):
    generation = store.put_if("leases/a", b"x", None)
    proxy.script.extend(script)
    assert store.delete_if("leases/a", generation) is had


def test_an_object_that_takes_more_than_one_request_is_not_put_on_a_condition(store):
    with pytest.raises(ValueError, match=f"at most {PUT_IF_BYTES_MAX}"):
        store.put_if("leases/a", bytes(PUT_IF_BYTES_MAX + 1), None)
    assert store.put_if("leases/a", bytes(PUT_IF_BYTES_MAX), None) is not None


# Uploads


@pytest.mark.parametrize("size_bytes", [10, LARGE_BYTES], ids=["small", "large"])
def test_an_upload_says_the_checksum_of_what_it_sends(store, proxy, size_bytes):
    data = os.urandom(size_bytes)
    checksum = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big"))
    sent: list[bytes] = []

    def looked_at(call):
        sent.append(call.body() + str(call.headers).encode())
        passed(call)

    proxy.script.extend([looked_at] * 2)
    store.put("a", data)
    assert any(checksum in one for one in sent)


@pytest.mark.parametrize(
    "script",
    [[lost], [answers(503)], [done_but(503)], [passed, answers(503)], [passed, answers(410)], [passed, answers(404)]],
    ids=["lost", "503", "503 after all", "503 in the middle", "410 in the middle", "404 in the middle"],
)
def test_a_large_file_gets_through_a_network_that_fails(store, proxy, tmp_path, script):
    source = tmp_path / "source"
    source.write_bytes(os.urandom(LARGE_BYTES))
    proxy.script.extend(script)
    store.put_file("weights/w", source)
    assert store.get("weights/w") == source.read_bytes()


@pytest.mark.parametrize("size_bytes", [3 << 20, LARGE_BYTES], ids=["small", "large"])
def test_a_process_killed_in_the_middle_of_an_upload_leaves_nothing(gcs, proxy, bucket, tmp_path, size_bytes):
    source = tmp_path / "source"
    source.write_bytes(bytes(size_bytes))
    began, over = threading.Event(), threading.Event()

    def stalled(call):
        call.body(1 << 20)
        began.set()
        over.wait(30)
        call.close(reset=True)

    proxy.script.extend([stalled] if size_bytes < LARGE_BYTES else [passed, stalled])
    writer = start(Place(url=proxy.url, bucket=bucket), "put_file", "weights/w", source)
    try:
        assert began.wait(30)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(30)
    finally:
        over.set()
        end([writer])
    store = Place(url=gcs.url, bucket=bucket).open()
    assert store.names("weights") == []
    assert list(store.entries("")) == []
    with pytest.raises(NotStored):
        store.get("weights/w")


# Connections, files, opening


def test_parallel_downloads_use_as_many_connections_and_use_them_again(store, proxy, caplog):
    for index in range(64):
        store.put(f"executables/{index}", b"x" * 1000)
    proxy.seen.clear()
    for _ in range(2):
        fetched = fetch_all(store, [f"executables/{index}" for index in range(64)])
        assert all(read(file) == b"x" * 1000 for file in fetched.values())
    assert len(proxy.seen) == 128, "one request for each"
    assert 1 < len({seen.client_port for seen in proxy.seen}) <= DOWNLOADS_PARALLEL + 1
    assert not [record for record in caplog.records if record.name.startswith("urllib3")]


def test_local_files_go_away_with_the_store(gcs, bucket):
    store = GcsStore(bucket, "", gcs.client())
    store.put("a/b", b"x")
    file = store.local_path("a/b")
    assert file.read_bytes() == b"x"
    del store
    gc.collect()
    assert not file.exists()
    assert not file.parent.parent.exists()


def test_objects_of_others_that_are_no_paths_are_not_shown(gcs, bucket):
    foreign = gcs.client().bucket(bucket)
    for name in ("m/ok", "m/not a path", "m/", "m/.hidden", "m/x//y", "outside"):
        foreign.blob(name).upload_from_string(b"x")
    store = GcsStore(bucket, "m", gcs.client())
    assert [entry.path for entry in store.entries("")] == ["ok"]
    assert GcsStore(bucket, "", gcs.client()).names("m") == ["ok", "x"]


def test_what_takes_several_pages_to_list_is_listed_whole_also_if_one_of_them_fails(store, proxy):
    def page(call):
        call.add_to_query("maxResults=7")
        passed(call)

    for index in range(20):
        store.put(f"m/{index:02}", b"")
    for fault in (page, answers(503)):
        proxy.seen.clear()
        proxy.script.extend([page, fault, *[page] * 3])
        assert store.names("m") == [f"{index:02}" for index in range(20)]
        assert len(proxy.seen) >= 3
        proxy.script.clear()
        proxy.script.extend([page, fault, *[page] * 3])
        assert len(list(store.entries("m"))) == 20
        proxy.script.clear()


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("gs://bucket", "GcsStore('gs://bucket/')"),
        ("gs://bucket/", "GcsStore('gs://bucket/')"),
        ("gs://a.b-c_1/some/folder", "GcsStore('gs://a.b-c_1/some/folder')"),
        ("gs://bucket/folder/", "GcsStore('gs://bucket/folder')"),
    ],
)
def test_a_bucket_is_opened_by_its_uri(gcs, monkeypatch, uri, shown):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    assert repr(raw_store(uri)) == shown


@pytest.mark.parametrize(
    "uri", ["gs://", "gs:///folder", "gs://B", "gs://bucket/a b", "gs://bucket/../x", "gs://bucket/f?x=1", "gs://b/f#x"]
)
def test_what_is_no_bucket_is_refused(uri):
    with pytest.raises(ValueError, match=r"gs://bucket or gs://bucket/folder"):
        raw_store(uri)


def test_a_machine_without_credentials_is_told_how_to_have_some(monkeypatch, tmp_path):
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(ValueError, match=r"gs://bucket.*GOOGLE_APPLICATION_CREDENTIALS"):
        raw_store("gs://bucket")


def test_who_opens_a_folder_does_not_import_the_client(tmp_path):
    code = f"import sys; from cache.opening import raw_store; raw_store({str(tmp_path)!r}); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"google.cloud.storage", "requests", "cache.gcs_store"} & set(result.stdout.split())


def test_no_path_leads_out_of_the_folder():
    store = GcsStore("bucket", "folder", client_of("http://127.0.0.1:9"))

    @given(st.text(max_size=40))
    def check(path):
        try:
            name = store._blob(path).name
        except ValueError:
            return
        assert name == f"folder/{path}"
        assert ".." not in name.split("/")

    check()
