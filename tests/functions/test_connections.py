import asyncio
import time

import pytest

from functions import connections
from functions.connections import Connections, Dropped, Malformed, Oversized, Unreachable
from tests.functions.fake_instance import CUTS, DROP, REFUSE_UNREAD, Cut, Say

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def post(url, *, times=1, body=b"body", headers=(), answer_bytes_max=1000):
    """Send the same request over and over from one event loop, and return the answers."""

    async def run():
        to = Connections(url, answer_bytes_max)
        try:
            return [await to.post("/said", headers, body) for _ in range(times)]
        finally:
            to.close()

    return asyncio.run(run())


def test_a_request_is_sent_as_it_is_given(instance):
    instance.script.append(Say(200, b"ok", headers=("X-Some: Value",)))
    (answer,) = post(instance.url + "/base", headers=[("x-mine", "1")], body=b"\0\r\n\xff")
    assert (answer.status, answer.body, answer.headers[b"x-some"]) == (200, b"ok", b"Value")
    (received,) = instance.received
    assert received.path == "/base/said"
    assert received.body == b"\0\r\n\xff"
    assert received.headers == {"host": instance.url.removeprefix("http://"), "content-length": "4", "x-mine": "1"}


def test_an_answer_may_come_in_chunks(instance):
    instance.script.append(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n")
    assert post(instance.url)[0].body == b"abcde"


def test_a_large_answer_and_a_large_body_pass(instance):
    instance.script.append(Say(200, b"x" * 5_000_000))
    (answer,) = post(instance.url, body=b"y" * 5_000_000, answer_bytes_max=5_000_000)
    assert answer.body == b"x" * 5_000_000
    assert instance.received[0].body == b"y" * 5_000_000


@pytest.mark.parametrize(
    ("answer", "connections_made"),
    [
        (OK, 1),
        (OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), 3),
        (OK.replace(b"HTTP/1.1", b"HTTP/1.0"), 3),
    ],
)
def test_a_connection_is_kept_only_where_the_answer_leaves_it_clean(instance, answer, connections_made):
    instance.script.extend([answer] * 3)
    assert [answer.body for answer in post(instance.url, times=3)] == [b"ok"] * 3
    assert instance.connections == connections_made


def test_a_connection_that_idled_too_long_is_not_used_again(instance, monkeypatch):
    monkeypatch.setattr(connections, "IDLE_S_MAX", -1)
    instance.script.extend([OK] * 3)
    post(instance.url, times=3)
    assert instance.connections == 3


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(instance):
    async def run():
        to = Connections(instance.url, 1000)
        instance.script.extend([OK, OK])
        await to.post("/said", [], b"")
        instance.hang_up()
        async with asyncio.timeout(5):
            await to._idle[0]._reader.read()
        answer = await to.post("/said", [], b"")
        to.close()
        return answer.body

    assert asyncio.run(run()) == b"ok"
    assert instance.connections == 2


def test_a_refusal_is_heard_before_the_whole_body_is_sent(instance):
    instance.script.append(REFUSE_UNREAD)
    (answer,) = post(instance.url, body=bytes(20_000_000))
    assert answer.status == 413


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (DROP, Dropped),
        *((cut, Dropped) for cut in CUTS),
        (b"SSH-2.0-OpenSSH\r\n", Malformed),
        (OK + OK, Malformed),
        (OK + b"junk", Malformed),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok", Malformed),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", Malformed),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, Oversized),
        (Say(200, b"x" * 1001), Oversized),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_closes_the_connection(instance, told, error):
    async def run():
        to = Connections(instance.url, 1_000_000 if isinstance(told, Cut) else 1000)
        instance.script.extend([told, OK])
        with pytest.raises(error):
            await to.post("/said", [], b"")
        answer = await to.post("/said", [], b"")
        to.close()
        return answer.body

    assert asyncio.run(run()) == b"ok"
    assert instance.connections == 2


def test_a_port_that_refuses_is_unreachable(dead_url):
    with pytest.raises(Unreachable):
        post(dead_url)


def test_a_connection_that_is_not_accepted_in_time_is_unreachable(full_url):
    async def run():
        await Connections(full_url, 1000).post("/said", [], b"", connect_s_max=0.1)

    before = time.monotonic()
    with pytest.raises(Unreachable):
        asyncio.run(run())
    assert time.monotonic() - before < 60


@pytest.mark.parametrize("value", ["1\r\nx-injected: 1", "1\n", "\0", "1\x85"])
def test_a_header_cannot_bring_another(instance, value):
    with pytest.raises(ValueError, match="control character"):
        post(instance.url, headers=[("x-mine", value)])
    assert instance.received == []


def test_connections_beyond_the_need_grow_old_and_are_closed(instance, monkeypatch):
    async def run():
        to = Connections(instance.url, 1000)
        instance.script.extend([OK] * 6)
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(to.post("/said", [], b""))
        assert len(to._idle) == 5
        kept = to._idle[-1]
        for idle in list(to._idle)[:-1]:
            idle.idle_since_s -= connections.IDLE_S_MAX
        await to.post("/said", [], b"")
        assert list(to._idle) == [kept]
        to.close()

    asyncio.run(run())
