"""A function says who it is where the pool asks for that, with a token that it does not ask for each time."""

import asyncio
import base64
import functools
import json

import pytest

from functions.identity import RENEW_S, Identity
from functions.pool import Pool
from functions.settings import Settings
from tests.functions.fake_instance import DROP, HANG, FakeInstance, Say
from warmpool import wire
from warmpool.errors import DeadlineExceeded, PoolUnavailable

AUDIENCE = "https://pool-123.a.run.app"
PATH = "/computeMetadata/v1/instance/service-accounts/default/identity?audience=https%3A%2F%2Fpool-123.a.run.app"
INPUTS = {"x": wire.Tensor.of("FP32", [1.0, 2.0])}


def in_a_loop(test):
    """A coroutine as a test."""

    @functools.wraps(test)
    def run(**fixtures):
        asyncio.run(test(**fixtures))

    return run


def token(until_s, name="t"):
    claims = base64.urlsafe_b64encode(json.dumps({"exp": until_s, "name": name}).encode()).decode().rstrip("=")
    return f"header.{claims}.signature"


def said(until_s, name="t"):
    return Say(200, body=token(until_s, name).encode())


@pytest.fixture
def metadata():
    with FakeInstance() as running:
        yield running


def identity_of(metadata, now_s):
    return Identity(AUDIENCE, f"127.0.0.1:{metadata.port}", clock=lambda: now_s[0])


@in_a_loop
async def test_calls_bring_the_functions_token_and_share_it(instance, metadata):
    metadata.script.append(said(2**40))
    pool = Pool(Settings(urls=(instance.url,), audience=AUDIENCE, metadata_host=f"127.0.0.1:{metadata.port}"))
    results = await asyncio.gather(*(pool.infer("doubled", INPUTS) for _ in range(8)))
    await pool.aclose()
    assert [one["output"].tolist() for one in results] == [[2.0, 4.0]] * 8
    assert {one.headers["authorization"] for one in instance.received} == {f"Bearer {token(2**40)}"}
    (asked,) = metadata.received
    assert asked.path == PATH
    assert asked.headers["metadata-flavor"] == "Google"


@in_a_loop
async def test_a_pool_that_asks_for_nobody_is_told_nothing(instance):
    pool = Pool(Settings(urls=(instance.url,)))
    await pool.infer("doubled", INPUTS)
    await pool.aclose()
    assert "authorization" not in instance.received[0].headers


@in_a_loop
async def test_a_token_is_asked_for_again_before_it_ends(metadata):
    now_s = [1000.0]
    identity = identity_of(metadata, now_s)
    metadata.script.extend([said(4600.0, "first"), said(8000.0, "second")])
    first = await identity.headers()
    now_s[0] = 4600.0 - RENEW_S - 1
    assert await identity.headers() == first
    now_s[0] += 1
    assert await identity.headers() == {"authorization": f"Bearer {token(8000.0, 'second')}"}
    assert len(metadata.received) == 2
    identity.close()


@pytest.mark.parametrize(
    "answer",
    [
        DROP,
        Say(404),
        Say(200, body=b"no token"),
        Say(200, body=b"a.b.c"),
        Say(200, body=b"a.e30.c"),  # {}
        Say(200, body="a.b.ü".encode()),
        Say(200, body=b"x" * (1 << 15)),
    ],
)
@in_a_loop
async def test_without_a_token_the_pool_is_not_asked_and_an_old_one_serves_while_it_is_good(metadata, answer):
    now_s = [1000.0]
    identity = identity_of(metadata, now_s)
    metadata.script.append(answer)
    with pytest.raises(PoolUnavailable, match="cannot say who it is"):
        await identity.headers()
    metadata.script.extend([said(1100.0), answer, answer])  # good for less than what it is renewed before
    headers = await identity.headers()
    assert await identity.headers() == headers
    now_s[0] = 1100.0
    with pytest.raises(PoolUnavailable, match="cannot say who it is"):
        await identity.headers()
    identity.close()


@in_a_loop
async def test_a_metadata_server_that_hangs_holds_up_nobody_while_the_old_token_is_good(metadata):
    now_s = [1000.0]
    identity = identity_of(metadata, now_s)
    metadata.script.extend([said(4600.0), HANG, HANG])
    first = await identity.headers()
    now_s[0] = 4600.0 - 1
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(identity.headers())
        await asyncio.sleep(0)  # it has the turn
        assert await identity.headers() == first
        assert not asking.done()
    assert asking.result() == first
    assert await identity.headers() == first
    assert len(metadata.received) == 2
    now_s[0] = 4600.0
    with pytest.raises(TimeoutError):  # there is no token any more: how long to wait is the caller's to say
        async with asyncio.timeout(0.1):
            await identity.headers()
    identity.close()


@in_a_loop
async def test_waiting_for_a_token_takes_no_longer_than_the_caller_has(instance, metadata):
    metadata.script.append("hang")
    pool = Pool(Settings(urls=(instance.url,), audience=AUDIENCE, metadata_host=f"127.0.0.1:{metadata.port}"))
    with pytest.raises(DeadlineExceeded):
        await pool.infer("doubled", INPUTS, timeout_s=0.2)
    await pool.aclose()
    assert instance.received == []
