"""Every error that a request can meet has its status in every protocol, so that none is answered as a surprise."""

from __future__ import annotations

import importlib
import json
import pkgutil

import grpc
import pytest

import warmpool
from warmpool import errors, grpc_app, http_app
from warmpool.errors import WarmpoolError

# Never the answer to a request: raised at start, at publish, in a child of ours, or by a client.
ELSEWHERE = {
    "BucketsCommandFailed": "command",
    "CacheCommandFailed": "command",
    "DeclarationError": "publish",
    "InstanceSilent": "client",
    "NoLog": "command",
    "PortTaken": "start",
    "PoolUnavailable": "client",
    "ProofFailed": "publish",
    "PublishError": "publish",
    "RolloutCommandFailed": "command",
    "RolloutRefused": "command",
    "SettingError": "start",
    "StoreFailed": "start",
    "WorkerFailed": "publish",
}
HTTP = {
    "BadInput": 400,
    "NotFound": 404,
    "TooLarge": 413,
    "Overloaded": 429,
    "Cancelled": 499,
    "LaneFailed": 500,
    "NotWarm": 503,
    "DeadlineExceeded": 504,
}


def subclasses(kind):
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def tree():
    """Every error that any file of warmpool defines."""
    for module in pkgutil.walk_packages(warmpool.__path__, "warmpool."):
        importlib.import_module(module.name)
    return [kind for kind in subclasses(WarmpoolError) if kind.__module__.startswith("warmpool.")]


def leaves():
    return sorted((kind for kind in tree() if not kind.__subclasses__()), key=lambda kind: kind.__name__)


def test_every_error_has_a_status_or_never_meets_a_request():
    known = {kind.__name__ for kind in http_app.STATUS} | ELSEWHERE.keys()
    assert {kind.__name__ for kind in leaves()} <= known


def test_no_name_is_in_both_or_stale():
    names = {kind.__name__ for kind in tree()}
    assert names >= ELSEWHERE.keys()
    assert not ELSEWHERE.keys() & HTTP.keys()


def test_the_protocols_know_the_same_errors():
    assert http_app.STATUS.keys() == grpc_app.STATUS.keys()
    assert grpc.StatusCode.UNKNOWN not in grpc_app.STATUS.values()


def test_the_statuses_are_the_documented_ones():
    assert {kind.__name__: status for kind, status in http_app.STATUS.items()} == HTTP


def test_a_status_is_given_to_kinds_that_are_raised_not_to_their_bases():
    assert set(http_app.STATUS) <= set(leaves())


@pytest.mark.parametrize("kind", http_app.STATUS, ids=lambda kind: kind.__name__)
def test_an_error_is_answered_with_its_message_and_where_waiting_helps_for_how_long(kind):
    response = http_app.error_response(kind("what happened"))
    assert response.status == HTTP[kind.__name__]
    assert json.loads(bytes(response.body)) == {"error": "what happened"}
    assert response.headers["content-type"] == "application/json"
    assert ("retry-after" in response.headers) is issubclass(kind, errors.RetryLater)


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.01, "2"), (1.4, "2"), (2.0, "2"), (10.0, "10")]
)
def test_a_caller_is_told_whole_seconds_and_at_least_one(seconds, header):
    assert http_app.error_response(errors.NotWarm("loading", seconds)).headers["retry-after"] == header


def test_an_error_that_no_request_should_meet_is_a_500_without_a_retry():
    response = http_app.error_response(errors.PublishError("x"))
    assert response.status == 500
    assert "retry-after" not in response.headers


def test_answers_that_ask_for_a_retry_are_429_and_503_only():
    asking = {status for kind, status in http_app.STATUS.items() if issubclass(kind, errors.RetryLater)}
    assert asking == {429, 503}
