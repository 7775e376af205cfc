import asyncio
import time

import pytest

from functions.pool import Pool
from functions.settings import Settings
from tests.functions.fake_instance import CUTS, DROP, HANG, Cut, Say
from warmpool import wire
from warmpool.errors import (
    BadInput,
    Cancelled,
    DeadlineExceeded,
    LaneFailed,
    NotFound,
    NotWarm,
    Overloaded,
    PoolUnavailable,
    TooLarge,
)

X = {"x": wire.Tensor.of("FP32", [[1, 2], [3, 4]])}
PATH = "/v2/models/twice/infer"


def infer(*urls, times=1, settings=None, **arguments):
    """Call a pool of these URLs one after another from one event loop, and return the last result."""

    async def run():
        pool = Pool(settings or Settings(urls=urls))
        try:
            results = [await pool.infer("twice", X, **({"timeout_s": 5.0} | arguments)) for _ in range(times)]
            return results[-1]
        finally:
            await pool.aclose()

    return asyncio.run(run())


def test_a_result_holds_the_outputs_and_how_they_were_served(instance):
    result = infer(instance.url)
    assert result["output"].tolist() == [[2, 4], [6, 8]]
    assert result.served == {"lane": "primary", "cold": False, "model": "twice", "version": "7"}


@pytest.mark.parametrize(
    ("said", "front_ns"),
    [
        ("1700000000000000005 1700000000000000009", (1700000000000000005, 1700000000000000009)),
        ("5 5", (5, 5)),
        ("9 5", None),
        ("5 10", None),
        ("5", None),
        ("-5 -3", None),
        ("five nine", None),
        (f"{10**30} {10**30}", None),
    ],
)
def test_a_result_says_when_the_instance_had_the_request_and_the_answer(instance, said, front_ns):
    body = wire.encode_response(wire.InferResponse(model_name="twice", outputs={}), lambda _: False)[0]
    instance.script.append(Say(200, body, (f"x-warmpool-front-ns: {said}",)))
    assert infer(instance.url).front_ns == front_ns


def test_inputs_go_out_in_the_binary_form(instance):
    infer(instance.url)
    (received,) = instance.received
    assert received.path == PATH
    assert received.body.endswith(bytes(X["x"].data))
    assert received.inputs == X


def test_a_method_is_part_of_the_path(instance):
    infer(instance.url, method="gradient")
    assert instance.received[0].path == "/v2/models/twice:gradient/infer"


def test_a_name_cannot_leave_its_place_in_the_path(instance):
    infer(instance.url, method="../../admin")
    assert instance.received[0].path == "/v2/models/twice:..%2F..%2Fadmin/infer"


def test_requests_in_a_row_share_a_connection(instance):
    infer(instance.url, times=5)
    assert len(instance.received) == 5
    assert instance.connections == 1


def test_a_pool_serves_one_event_loop_after_another(instance):
    pool = Pool(Settings(urls=(instance.url,)))

    async def once():
        result = await pool.infer("twice", X)
        await pool.aclose()
        return result["output"].tolist()

    assert [asyncio.run(once()) for _ in range(3)] == [[[2, 4], [6, 8]]] * 3


def test_requests_in_a_row_go_to_the_endpoints_in_turn(instance, other):
    infer(instance.url, other.url, times=6)
    assert (len(instance.received), len(other.received)) == (3, 3)


@pytest.mark.parametrize("told", [Say(503), Say(502), DROP, Cut(b"", reset=True), *CUTS])
def test_a_request_that_is_refused_or_gets_no_whole_answer_goes_to_another_endpoint(instance, other, told):
    instance.script.append(told)
    result = infer(instance.url, other.url)
    assert result["output"].tolist() == [[2, 4], [6, 8]]
    assert (len(instance.received), len(other.received)) == (1, 1)


def test_an_endpoint_that_cannot_be_reached_is_passed_over(instance, dead_url):
    assert infer(dead_url, instance.url)["output"].tolist() == [[2, 4], [6, 8]]
    assert len(instance.received) == 1


def test_an_endpoint_that_failed_rests_while_there_is_another(instance, other):
    instance.script.append(DROP)
    infer(instance.url, other.url, times=4)
    assert (len(instance.received), len(other.received)) == (1, 4)


@pytest.mark.parametrize("told", [DROP, CUTS[-1], Say(503, headers=("retry-after: 0",))])
def test_the_only_endpoint_is_tried_again(instance, told):
    instance.script.append(told)
    assert infer(instance.url)["output"].tolist() == [[2, 4], [6, 8]]
    assert len(instance.received) == 2


def test_the_only_endpoint_is_tried_again_after_the_pause_it_asked_for(instance):
    instance.script.append(Say(503, headers=("retry-after: 1",)))
    before = time.monotonic()
    infer(instance.url)
    assert time.monotonic() - before >= 1


def test_a_pause_longer_than_the_deadline_is_not_waited_for(instance):
    instance.script.append(Say(503, headers=("retry-after: 600",)))
    before = time.monotonic()
    with pytest.raises(NotWarm) as caught:
        infer(instance.url, timeout_s=300.0)
    assert time.monotonic() - before < 60
    assert caught.value.retry_after_s == 600
    assert len(instance.received) == 1


def test_there_is_one_retry_and_no_more(instance, other):
    instance.script.extend([Say(503)] * 9)
    other.script.extend([Say(503)] * 9)
    with pytest.raises(NotWarm, match="as told"):
        infer(instance.url, other.url)
    assert (len(instance.received), len(other.received)) == (1, 1)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, BadInput),
        (404, NotFound),
        (413, TooLarge),
        (429, Overloaded),
        (499, Cancelled),
        (500, LaneFailed),
        (504, DeadlineExceeded),
        (418, PoolUnavailable),
    ],
)
def test_other_statuses_are_errors_at_once(instance, other, status, error):
    instance.script.append(Say(status))
    with pytest.raises(error):
        infer(instance.url, other.url)
    assert (len(instance.received), len(other.received)) == (1, 0)


def test_an_instances_message_is_kept(instance):
    instance.script.append(Say(400, b'{"error": "inputs[0] (x).shape: got [2, 2]; allowed: [*, 3]"}'))
    with pytest.raises(BadInput, match=r"inputs\[0\] \(x\).shape: got \[2, 2\]; allowed: \[\*, 3\]"):
        infer(instance.url)


@pytest.mark.parametrize("body", [b"<html>Bad</html>", b"[" * 100_000, b'{"error": 3}', b"\xff", b""])
def test_an_error_that_is_not_json_gets_a_message_of_ours(instance, body):
    instance.script.append(Say(400, body))
    with pytest.raises(BadInput, match="the pool answered with status 400"):
        infer(instance.url)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model_name": "twice", "outputs": [{"name": "output"}]}'])
def test_an_answer_outside_the_protocol_is_not_the_callers_mistake(instance, body):
    instance.script.append(Say(200, body))
    with pytest.raises(PoolUnavailable, match="outside the protocol"):
        infer(instance.url)


def test_answers_that_break_off_twice_are_an_error_and_nobody_is_counted_as_waiting(instance, other):
    async def run():
        pool = Pool(Settings(urls=(instance.url, other.url)))
        for cut in CUTS:
            instance.script.append(cut)
            other.script.append(cut)
            with pytest.raises(PoolUnavailable, match="before the end of an answer"):
                await pool.infer("twice", X)
        in_flight = [endpoint.in_flight for endpoint in next(iter(pool._loops.values())).connections]
        result = await pool.infer("twice", X)
        await pool.aclose()
        return in_flight, result["output"].tolist()

    assert asyncio.run(run()) == ([0, 0], [[2, 4], [6, 8]])
    assert len(instance.received) + len(other.received) == 2 * len(CUTS) + 1


def test_an_answer_that_is_not_http_is_not_asked_for_again(instance, other):
    instance.script.append(b"SSH-2.0-OpenSSH\r\n")
    with pytest.raises(PoolUnavailable, match="did not answer in HTTP"):
        infer(instance.url, other.url)
    assert len(other.received) == 0


def test_an_answer_has_a_largest_size(instance, settings_for):
    instance.script.append(Say(200, b" " * 100_001))
    with pytest.raises(PoolUnavailable, match="got over 100000 bytes"):
        infer(settings=settings_for(instance.url, response_bytes_max=100_000))


def test_no_endpoint_at_all_is_an_error_that_says_so(dead_url):
    with pytest.raises(PoolUnavailable, match="cannot be reached"):
        infer(dead_url)


def test_a_hanging_instance_is_left_at_the_deadline(instance):
    instance.script.append(HANG)
    before = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        infer(instance.url, timeout_s=1.0)
    assert 1.0 <= time.monotonic() - before < 60
    assert len(instance.received) == 1


@pytest.mark.parametrize("cut", [DROP, CUTS[-1]])
def test_the_deadline_covers_both_attempts(instance, other, cut):
    instance.script.append(cut)
    other.script.append(HANG)
    before = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        infer(instance.url, other.url, timeout_s=1.0)
    assert 1.0 <= time.monotonic() - before < 60


def test_the_rest_of_the_time_goes_along_with_each_attempt(instance):
    instance.script.append(Say(503, headers=("retry-after: 1",)))
    infer(instance.url, timeout_s=30)
    first, second = (int(received.headers["x-warmpool-timeout-ms"]) for received in instance.received)
    assert 20_000 < first <= 30_000
    assert second <= first - 1000


def test_the_time_that_goes_along_is_one_that_an_instance_takes(instance):
    infer(instance.url, timeout_s=1e9)
    assert instance.received[0].headers["x-warmpool-timeout-ms"] == "86400000"


def test_the_priority_that_is_set_goes_along(instance, settings_for):
    infer(settings=settings_for(instance.url, priority=2))
    infer(settings=settings_for(instance.url))
    assert [received.headers.get("x-warmpool-priority") for received in instance.received] == ["2", None]


def test_a_cancelled_caller_gives_its_connection_back(instance):
    async def run():
        pool = Pool(Settings(urls=(instance.url,)))
        instance.script.append(HANG)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(pool.infer("twice", X))
            await asyncio.to_thread(instance.arrived.acquire, timeout=60)
            task.cancel()
        (endpoint,) = next(iter(pool._loops.values())).connections
        assert endpoint.in_flight == 0
        result = await pool.infer("twice", X)
        await pool.aclose()
        return result["output"].tolist()

    assert asyncio.run(run()) == [[2, 4], [6, 8]]


def test_many_callers_at_once_each_get_their_own_answer(instance, other):
    async def run():
        pool = Pool(Settings(urls=(instance.url, other.url)))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(pool.infer("twice", {"x": wire.Tensor.of("FP32", [float(index)])}))
                for index in range(200)
            ]
        await pool.aclose()
        return [task.result()["output"].tolist() for task in tasks]

    assert asyncio.run(run()) == [[2.0 * index] for index in range(200)]
    assert instance.connections <= 64
    assert other.connections <= 64


def test_a_tensor_whose_bytes_do_not_fit_never_leaves(instance):
    async def run():
        await Pool(Settings(urls=(instance.url,))).infer("twice", {"x": wire.Tensor("FP32", (3,), b"1234")})

    with pytest.raises(BadInput, match=r"inputs \(x\): got 4 bytes; allowed: 12"):
        asyncio.run(run())
    assert instance.received == []
