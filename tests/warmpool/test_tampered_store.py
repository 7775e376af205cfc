"""A store that somebody else can write to: nothing that was tampered with reaches XLA, and the rest is served."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import shutil
import signal
import socket
from collections import Counter
from concurrent.futures import Future

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.artifact import peek
from cache.document import seal
from cache.errors import Refused
from cache.executable import Runtime
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import Trust
from tests.edges import assert_same, inputs_for, sizes_of
from tests.instance_process import InstanceProcess, inferred, tensors, wait_until
from tests.tiny import METHODS, executable_file, publish_tiny
from tests.warmpool.tampering import COLLEAGUE, ELSEWHERE, REVOKED, SIGNER, STRANGER, TRUST, Genuine, attacks, deadly
from warmpool import messages
from warmpool.arena import Arena
from warmpool.catalog import read_catalog
from warmpool.lane import Lane
from warmpool.load_plan import plan_loads
from warmpool.manifest import Target, bucket_name, encode, executable_path, target_path

ATTACKS_MIN = 200
REASON_BYTES_MAX = 1 << 16  # half of what a datagram may have
EXAMPLES_MAX = 12  # of each kind of attack


@pytest.fixture(scope="session")
def signed_store(tiny_store, fingerprint, tmp_path_factory):
    """The folder of a store like `tiny_store`, whose publisher has a key; no test changes it."""
    folder = shutil.copytree(tiny_store, tmp_path_factory.mktemp("signed") / "store")
    store = SignedStore(LocalStore(folder), TRUST, SIGNER)
    for entry in list(store.entries("executables")):
        store.put(entry.path, store.inner.get(entry.path))
    publish_tiny(store, "second", ("predict",))
    publish_tiny(store)
    return folder


def genuine_of(store, fingerprint, name, bucket):
    """An executable of the store, and others that might be put in its place, one of another trusted key."""
    path = executable_file(name, bucket, fingerprint)
    others = [executable_file(other, {"batch": 8}, fingerprint) for other in ("predict", "invert")]
    data, *rest = (LocalStore(store).get(one) for one in (path, *others))
    colleague = Genuine(rest[0], ()).saying(COLLEAGUE)
    return Genuine(data, (*rest, colleague))


class Harness:
    """A lane's code in this process, whose runtime remembers what it is given, and loads it if told to."""

    def __init__(self, store, fingerprint, trust, monkeypatch, folder):
        self.runtime = Runtime.open("jax")
        self.reached = []
        self.loads = False
        self.file = folder / "artifact"
        load = self.runtime.load
        monkeypatch.setattr(self.runtime, "load", lambda payload: self._remember(payload, load))
        model = read_catalog(SignedStore(LocalStore(store), TRUST)).models["tiny"]
        plan = plan_loads(SignedStore(LocalStore(store), TRUST), [model], fingerprint, verified={}, ladder_only=False)
        self.messages = {
            (loadable.method.name, *loadable.candidate.bucket.values()): loadable.message
            for loadable in plan.loadables.values()
        }
        self.arena = Arena.create(1 << 16)
        self.channels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lane = Lane(self.runtime, fingerprint, self.arena, trust, self.channels[0])
        self.lane.weights[model.key] = Future()
        weights = messages.Weights(
            version=model.key,
            manifest_path=str(model.manifest_file),
            weights_path=str(model.weights_file),
            verified="",
        )
        assert self.lane._map(weights).reason == ""

    def close(self):
        self.arena.close()
        for channel in self.channels:
            channel.close()

    def _remember(self, payload, load):
        self.reached.append(bytes(payload))
        if self.loads:
            return load(payload)
        raise Refused("it reached XLA")

    def load(self, message, data):
        """What the lane says when it finds these bytes."""
        self.file.write_bytes(data)
        return self.lane._load(msgspec.structs.replace(message, artifact_path=str(self.file)))


@pytest.fixture
def harness(signed_store, fingerprint, monkeypatch, tmp_path):
    made = []

    def make(trust):
        made.append(Harness(signed_store, fingerprint, trust, monkeypatch, tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close()


def for_every(made, attempt):
    @settings(max_examples=EXAMPLES_MAX)
    @given(made)
    def every(data):
        attempt(data)

    every()


ABOUT_SIGNATURES = ("sign", "under ", "first format", "key id")


@pytest.mark.parametrize("unsigned", [False, True], ids=["signatures required", "unsigned allowed"])
def test_no_tampered_artifact_reaches_xla(signed_store, fingerprint, harness, unsigned):
    """Every region of the file and every field of the header, each in many ways."""
    lane = harness(Trust(TRUST.keys, unsigned, TRUST.distrusted))
    message = lane.messages["predict", 4]
    genuine = genuine_of(signed_store, fingerprint, "predict", {"batch": 4})
    kinds = attacks(genuine)
    if unsigned:  # where nobody has to sign anything, another signature or none is no attack
        kinds = {kind: made for kind, made in kinds.items() if not any(words in kind for words in ABOUT_SIGNATURES)}
    tried: set[bytes] = set()
    of_kind: Counter[str] = Counter()

    def attempt(kind, data):
        if data == genuine.data:
            return
        tried.add(hashlib.sha256(data).digest())
        of_kind[kind] += 1
        found = lane.load(message, data)
        assert isinstance(found, messages.Cold), kind
        assert found.reason.startswith(f"artifact {message.key[:16]} "), kind
        assert len(messages.encode(found)) <= REASON_BYTES_MAX
        assert lane.reached == [], kind

    for kind, made in kinds.items():
        for_every(made, functools.partial(attempt, kind))
    assert len(tried) >= ATTACKS_MIN
    assert set(of_kind) == set(kinds)

    assert isinstance(lane.load(message, genuine.data), messages.Cold)
    assert lane.reached == [genuine.payload]  # what is genuine is what it would have been given
    lane.loads = True
    assert isinstance(lane.load(message, genuine.data), messages.Warm)


def test_what_another_machine_made_is_refused_though_it_is_what_was_asked_for(signed_store, fingerprint, harness):
    """Its key is right too: a target that lists what was made elsewhere is as wrong as an artifact can be."""
    lane = harness(TRUST)
    message = lane.messages["predict", 4]
    genuine = genuine_of(signed_store, fingerprint, "predict", {"batch": 4})
    tried: Counter[str] = Counter()

    def attempt(name, data):
        if data == genuine.data:
            return
        tried[name] += 1
        key = peek("it", data).key
        found = lane.load(msgspec.structs.replace(message, key=key), data)
        assert isinstance(found, messages.Cold)
        assert found.reason.startswith(f"artifact {key[:16]} was made for something else ({name}: wanted ")
        assert lane.reached == []

    for name in sorted({*fingerprint.ingredients, *ELSEWHERE}):
        values = st.text(max_size=12) | st.just(ELSEWHERE.get(name, "other"))
        ingredient = f"fingerprint.{name}"
        made = st.builds(genuine.with_ingredient, st.just(ingredient), values, st.just(True))
        without = genuine.without_ingredient(ingredient, True)
        for_every(made | st.just(without), functools.partial(attempt, name))
        assert tried[name]


# In processes of their own


@pytest.fixture
def own_signed_store(signed_store, tmp_path):
    """A copy that a test may tamper with."""
    return shutil.copytree(signed_store, tmp_path / "store")


@pytest.fixture(scope="session")
def trusting(tmp_path_factory):
    """The flags of an instance that has the public keys alone."""
    folder = tmp_path_factory.mktemp("keys")
    for name, signer in {"signer": SIGNER, "colleague": COLLEAGUE, "revoked": REVOKED}.items():
        signer.write(folder / name).rename(folder / f"trusted-{name}.pub")
        (folder / name).unlink()
    return "--trusted-keys", str(folder), "--distrusted-keys", REVOKED.key_id


# By executable, none of the minimum set and each with a larger one: what is put in its place, what is said of that.
FIRST_START = {
    ("predict", 2): (lambda it: it.from_elsewhere("jaxlib"), "jaxlib: wanted "),
    ("predict", 4): (lambda it: it.from_elsewhere("cpu_features"), "found 'avx512f sse2'"),
    ("tokens", 1, 4): (lambda it: it.from_elsewhere("device_kind"), "found 'NVIDIA H200'"),
    ("tokens", 1, 8): (lambda it: it.from_elsewhere("device_count"), "device_count: wanted '1', found '8'"),
    ("tokens", 2, 4): (lambda it: it.from_elsewhere("cpu_cores", renamed=True), "key: wanted "),
    ("tokens", 2, 8): (lambda it: it.others[0], "key: wanted "),
    ("tokens", 4, 4): (lambda it: it.saying(kind="program"), "kind: wanted 'executable', found 'program'"),
    ("tokens", 4, 8): (lambda it: it.called(donated=(0,)), "donated: wanted '()', found '(0,)'"),
    ("kinds", 2): (lambda it: it.called(results=it.header.calling.results[:1]), "result 1: wanted "),
    ("kinds", 4): (lambda it: it.called(arguments=it.header.calling.arguments[1:]), "argument 0: wanted "),
    ("invert", 2): (lambda it: it.made_of({}, renamed=False), "program: wanted "),
    ("invert", 4): (lambda it: it.called(devices=8), "devices: wanted '1', found '8'"),
    ("count", 2): (lambda it: it.made_of({**it.header.ingredients, "program": "p"}, renamed=False), "found 'p'"),
    ("count", 4): (lambda it: it.saying(key="0" * 64), "key: wanted "),
}
SECOND_START = {
    ("predict", 2): (lambda it: it.saying(None), "it is not signed"),
    ("predict", 4): (lambda it: it.saying(STRANGER), f"the key {STRANGER.key_id[:16]}, which is not trusted here"),
    ("tokens", 1, 4): (lambda it: it.saying(REVOKED), f"the key {REVOKED.key_id[:16]}, which is distrusted"),
    ("tokens", 1, 8): (lambda it: it.under(COLLEAGUE.key_id), f"not that of the key {COLLEAGUE.key_id[:16]}"),
    ("tokens", 2, 4): (lambda it: it.of_format(1), "its format is 1, which has no room for a signature"),
    ("tokens", 2, 8): (lambda it: it.of_format(3), "format: wanted '2', found '3'"),
    ("tokens", 4, 4): (lambda it: it.data[:-1], "its lengths say otherwise"),
    ("tokens", 4, 8): (lambda it: it.data[:20], "20 bytes are fewer than an artifact has"),
    ("tokens", 8, 4): (lambda it: b"", "0 bytes are fewer than an artifact has"),
    ("kinds", 2): (lambda it: it.spliced("payload", it.payload[::-1]), "its digest does not match its content"),
    ("kinds", 4): (lambda it: it.spliced("payload", bytes(len(it.payload))), "its digest does not match its content"),
    ("invert", 2): (lambda it: it.spliced("header", bytes(len(it.data[it.regions["header"]]))), "its digest does not"),
    ("invert", 4): (
        lambda it: it.spliced("signature", it.others[0][-64:]),
        f"not that of the key {SIGNER.key_id[:16]}",
    ),
    ("count", 2): (lambda it: it.spliced("magic", b"PK" + bytes(6)), "it does not begin with the magic"),
    ("count", 4): (lambda it: b"\x7fELF" + it.data, "it does not begin with the magic"),
}


def bucket_of(place):
    name, *sizes = place
    return dict(zip([dim.name for dim in METHODS[name].dims], sizes, strict=True))


def tamper_with(folder, fingerprint, place, tamper):
    """Put something in the place of an executable."""
    name, bucket = place[0], bucket_of(place)
    genuine = genuine_of(folder, fingerprint, name, bucket)
    LocalStore(folder).put(executable_file(name, bucket, fingerprint), tamper(genuine))


def title_of(place, model="tiny"):
    return f"{model}:{place[0]} {bucket_name(bucket_of(place))}"


def assert_answers(instance, methods=tuple(METHODS)):
    """At, below and above the edges of every bucket, and more rows than any holds."""
    for name in methods:
        for sizes in sizes_of(name):
            inputs = inputs_for(name, sizes)
            assert_same(name, instance.infer(name, **inputs).outputs, inputs)


def assert_second_answers(instance):
    reply = instance.infer_reply("second", tensors("predict", {"x": np.ones((1, 4))}))
    assert reply.status == 200, reply.body
    assert inferred(reply).outputs["y"].tolist() == [[16.0, 9.0, -1.0]]


@pytest.mark.parametrize("tampered", [FIRST_START, SECOND_START], ids=["foreign", "damaged or untrusted"])
def test_an_instance_serves_the_rest_and_says_of_each_executable_why_it_is_cold(
    own_signed_store, tmp_path, fingerprint, trusting, tampered
):
    for place, (tamper, _) in tampered.items():
        tamper_with(own_signed_store, fingerprint, place, tamper)
    with started(own_signed_store, tmp_path / "log", *trusting) as instance:
        wanted = {title_of(place): words for place, (_, words) in tampered.items()}
        wanted |= {title_of(place, "second"): tampered[place][1] for place in tampered if place[0] == "predict"}
        cold = wait_until(lambda: cold_as(instance.lane("primary"), wanted))
        for title, words in wanted.items():
            assert words in cold[title], (title, cold[title])
        for place in tampered:
            inputs = inputs_for(place[0], bucket_of(place))
            outputs, parameters = instance.infer(place[0], **inputs)
            assert_same(place[0], outputs, inputs)
            assert parameters["bucket"] != bucket_name(bucket_of(place))
        assert_answers(instance)
        assert_second_answers(instance)
        lanes = instance.status()["lanes"]
        assert [(lane["restarts"], lane["compiles"]) for lane in lanes] == [(0, 0)] * 2
        assert lanes[0]["warm"] == lanes[0]["planned"] - len(wanted)


@contextlib.contextmanager
def started(*arguments):
    """An instance that answers, ready or not."""
    with InstanceProcess(*arguments) as instance:
        wait_until(lambda: instance.answers("/v1/status") == 200)
        yield instance


def cold_as(lane, titles):
    """Why these are cold, once they all are and nothing is under way; the instance looks again at what is cold."""
    cold = lane.get("cold", {})
    return cold if lane.get("state") == "warm" and cold.keys() == set(titles) else None


@pytest.mark.parametrize(
    ("place", "minimum"),
    [(("kinds", 4), False), (("kinds", 8), False), (("scale", 10), True)],
    ids=["of the primary lane", "of both lanes", "of the minimum set"],
)
def test_an_executable_that_kills_its_process_is_given_up_after_two_lanes_and_the_rest_is_served(
    own_signed_store, tmp_path, fingerprint, trusting, place, minimum
):
    """It is whole, signed by a trusted key, and says nothing but the truth of what it was made for."""
    tamper_with(own_signed_store, fingerprint, place, lambda it: it.with_payload(deadly(it.payload)))
    with started(own_signed_store, tmp_path / "log", *trusting) as instance:
        primary = wait_until(lambda: settled(instance, [title_of(place)]))
        assert primary["cold"][title_of(place)] == "lanes died 2 times while they loaded it"
        assert primary["restarts"] == 2
        assert primary["warm"] == primary["planned"] - 1
        assert instance.log.count("lane died lane='primary'") == 2
        assert instance.answers("/v2/health/live") == 200
        assert instance.answers("/v2/models/second/ready") == 200
        assert instance.answers("/v2/models/tiny/ready") == (503 if minimum else 200)
        assert_answers(instance, set(METHODS) - {"scale"})
        assert instance.infer("scale", values=[1] * 4, factor=2).outputs["scaled"].tolist() == [2.0] * 4
        assert_second_answers(instance)
        if minimum:
            reply = instance.infer_reply("tiny:scale", tensors("scale", {"values": [1] * 5, "factor": 2}))
            assert reply.status == 503
        assert instance.lane("primary")["restarts"] == 2
        assert instance.lane("cpu")["restarts"] <= 2


def settled(instance, titles):
    """The primary lane, once both are done with everything and these alone are cold in it."""
    lanes = instance.status()["lanes"]
    if any(lane["state"] != "warm" for lane in lanes):
        return None
    return lanes[0] if cold_as(lanes[0], titles) else None


@pytest.mark.parametrize("part", range(4))
def test_garbage_under_a_right_signature_is_refused_by_xla_or_kills_lanes_and_the_rest_is_served(
    own_signed_store, tmp_path, fingerprint, trusting, part
):
    def garbled(genuine):
        payload = genuine.payload
        start = len(payload) * part // 4
        end = start + len(payload) // 4
        return genuine.with_payload(payload[:start] + payload[start:end][::-1] + payload[end:])

    place = ("tokens", 2, 8)
    tamper_with(own_signed_store, fingerprint, place, garbled)
    with started(own_signed_store, tmp_path / "log", *trusting) as instance:
        primary = wait_until(lambda: settled(instance, [title_of(place)]))
        reason = primary["cold"][title_of(place)]
        assert reason.startswith(("XLA would not load the executable: ", "lanes died 2 times", "the executable"))
        assert_answers(instance)
        assert_second_answers(instance)


def test_an_instance_loads_nothing_that_another_machine_made_though_a_signed_target_lists_it(
    own_signed_store, tmp_path, fingerprint, trusting
):
    store = SignedStore(LocalStore(own_signed_store), TRUST, SIGNER)
    elsewhere = {
        ("kinds", 2): "jaxlib",
        ("kinds", 4): "cpu_features",
        ("invert", 2): "device_kind",
        ("invert", 4): "device_count",
        ("count", 2): "xla_flags",
        ("count", 4): "platform",
    }
    keys = {}
    for (name, batch), ingredient in elsewhere.items():
        data = genuine_of(own_signed_store, fingerprint, name, {"batch": batch}).from_elsewhere(ingredient, True)
        key = keys[name, batch] = peek("it", data).key
        store.put(executable_path(key), data)
    path = target_path("tiny", "1", fingerprint.digest)
    target = msgspec.json.decode(store.get(path), type=Target)
    executables = tuple(
        msgspec.structs.replace(spec, key=keys.get((spec.method, spec.bucket.get("batch", 0)), spec.key))
        for spec in target.executables
    )
    store.put(path, encode(msgspec.structs.replace(target, executables=executables)))
    with started(own_signed_store, tmp_path / "log", *trusting) as instance:
        primary = wait_until(lambda: settled(instance, map(title_of, elsewhere)))
        for place, ingredient in elsewhere.items():
            assert f"{ingredient}: wanted " in primary["cold"][title_of(place)]
            assert f", found {ELSEWHERE[ingredient]!r}" in primary["cold"][title_of(place)]
        assert primary["restarts"] == 0
        assert_answers(instance)


# Documents

DOCUMENTS = {
    "serving document": "models/{model}/serving.json",
    "manifest": "models/{model}/1/manifest.json",
    "target": "models/{model}/1/targets",
}
NOT_ITS_SIGNATURE = f"its signature is not that of the key {SIGNER.key_id[:16]}"


def edited(data, _):
    """Something that the reader would take, and another program's answer: only the signature tells."""
    changed = data.replace(b'"stable": "1"', b'"stable": "2"').replace(b'"float32"', b'"float16"')
    return changed if changed != data else data.replace(b'"cost_us": ', b'"cost_us": 1')


def without_its_seal(data, _):
    return data[: data.rindex(b'{"signed_by"')]


def sealed_by_a_stranger(data, path):
    return seal(path, without_its_seal(data, path), STRANGER)


def sealed_for_another_version(data, path):
    model = path.split("/")[1]
    return seal(path.replace("/1/", "/2/").replace(f"{model}/s", "second/s"), without_its_seal(data, path), SIGNER)


TAMPERED = {
    edited: NOT_ITS_SIGNATURE,
    without_its_seal: "it is not signed",
    sealed_by_a_stranger: f"it is signed by the key {STRANGER.key_id[:16]}, which is not trusted here",
    sealed_for_another_version: NOT_ITS_SIGNATURE,
}


def test_a_document_that_was_tampered_with_is_a_problem_of_its_model_alone(own_signed_store, tmp_path, trusting):
    """Each document in each way, of a model of its own."""
    store = LocalStore(own_signed_store)
    reasons = {}
    for document, (tamper, words) in itertools.product(DOCUMENTS, TAMPERED.items()):
        model = f"{document} {tamper.__name__}".replace(" ", "-").replace("_", "-")
        publish_tiny(SignedStore(store, TRUST, SIGNER), model, ("predict",))
        path = DOCUMENTS[document].format(model=model)
        if document == "target":
            path = f"{path}/{store.names(path)[0]}"
        before = store.get(path)
        store.put(path, tamper(before, path))
        assert store.get(path) != before
        reasons[model] = f"{path!r} is not trusted: {words}"
    with started(own_signed_store, tmp_path / "log", *trusting) as instance:
        wait_until(lambda: all(problem_of(model, instance.status()) for model in reasons))
        status = instance.status()
        assert {model: problem_of(model, status) for model in reasons} == reasons
        for model in ("second", "tiny"):
            wait_until(lambda: instance.answers(f"/v2/models/{model}/ready") == 200)  # noqa: B023  it is called here
        assert_second_answers(instance)
        for model in reasons:
            reply = instance.infer_reply(f"{model}:predict", tensors("predict", {"x": np.ones((1, 4))}))
            assert reply.status == 503
        assert [lane["restarts"] for lane in instance.status()["lanes"]] == [0, 0]


def problem_of(model, status):
    """Why a model cannot be served, as soon as that is known."""
    lanes = [lane["missing"].get(f"{model}/1", "") for lane in status["lanes"]]
    return status["problems"].get(model) or next(filter(None, lanes), None)


def test_a_manifest_that_is_tampered_with_later_is_not_taken_by_the_next_lane(own_signed_store, tmp_path, trusting):
    """A lane reads it by itself, to know where in the file the weights lie."""
    store = LocalStore(own_signed_store)
    path = "models/tiny/1/manifest.json"
    with started(own_signed_store, tmp_path / "log", *trusting) as instance:
        instance.wait_warm()
        store.put(path, store.get(path).replace(b'"offset": 64', b'"offset": 0'))
        pid = instance.lane("primary")["pid"]
        os.kill(pid, signal.SIGKILL)
        primary = wait_until(lambda: restarted(instance, pid))
        reasons = {title: reason for title, reason in primary["cold"].items() if title.startswith("tiny:")}
        assert len(reasons) == primary["planned"] - primary["warm"] > 1
        assert all("its weights cannot be mapped: " in reason for reason in reasons.values())
        assert all(NOT_ITS_SIGNATURE in reason for reason in reasons.values())
        assert set(primary["cold"]) == set(reasons)
        assert primary["restarts"] == 1
        outputs, parameters = instance.infer("predict", x=np.ones((1, 4)))  # the other lane has mapped the right ones
        assert outputs["y"].tolist() == [[16.0, 9.0, -1.0]]
        assert parameters["lane"] == "cpu"


def restarted(instance, pid):
    """The primary lane, once another process is it and has tried everything."""
    primary = instance.lane("primary")
    return primary if primary["pid"] not in {None, pid} and primary["state"] == "warm" else None
