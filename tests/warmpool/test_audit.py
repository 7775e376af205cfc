"""The audit log of what is published and served: every executable that runs here is told, and every one refused."""

from __future__ import annotations

import sys
from dataclasses import replace

from cache.fingerprint import Fingerprint
from cache.settings import StoreSettings
from cache.signing import Signer
from tests.instance_process import InstanceProcess, records_of, wait_until
from tests.tiny import METHODS, executable_file
from warmpool.publishing.progress import Lines
from warmpool.publishing.publish import Options, publish

MODEL = """
import jax.numpy as jnp
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=1, sizes=(1,), batch=True)

def predict(params, x):
    return x * {factor}

model = Model(name="doubling", methods={{"predict": predict}}, inputs={{"x": Tensor("float32", (batch, 2))}})
"""

MEANT = {"model": "tiny", "method": "predict", "lane": "primary"}


def lines(file):
    return records_of(file)


def told(line, *names):
    return {name: line.get(name) for name in names}


def test_a_publish_is_told_once_and_a_promotion_with_what_it_took_the_place_of(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    signer = Signer.generate()
    signer.write(tmp_path / "key")
    log_file = tmp_path / "audit"
    settings = StoreSettings(store=str(tmp_path / "store"), signing_key=str(tmp_path / "key"), audit_log=str(log_file))
    options = Options(model_file=tmp_path / "model.py", store=settings, platform="cpu")

    def published(factor, version):
        options.model_file.write_text(MODEL.format(factor=factor))
        summary = publish(replace(options, version=version), Lines(sys.stderr))
        return summary.machines[0].fingerprint, lines(log_file)

    fingerprint, first = published(2, "1")
    assert [line["event"] for line in first] == ["publish", "promote"]
    same = {"model": "doubling", "version": "1", "key_id": signer.key_id}
    assert told(first[0], "model", "version", "key_id", "fingerprint") == same | {"fingerprint": fingerprint}
    assert told(first[1], "model", "version", "key_id", "before") == same | {"before": ""}
    assert published(2, "1")[1] == first  # nothing is new
    second = published(3, "2")[1][2:]
    assert [(line["event"], line["version"]) for line in second] == [("publish", "2"), ("promote", "2")]
    assert second[1]["before"] == "1"
    back = published(2, "1")[1][4:]
    assert [told(line, "event", "version", "before") for line in back] == [
        {"event": "promote", "version": "1", "before": "2"}
    ]


def test_every_executable_that_is_loaded_or_refused_is_told(own_store, tmp_path, fingerprint: Fingerprint):
    damaged = own_store / executable_file("scale", {"length": 10}, fingerprint)
    content = damaged.read_bytes()
    damaged.unlink()
    damaged.write_bytes(content[:-1])
    log_file = tmp_path / "audit"
    with InstanceProcess(own_store, tmp_path / "log", "--audit-log", str(log_file)) as instance:
        wait_until(lambda: instance.answers("/v1/status") == 200)
        wait_until(lambda: [lane["state"] for lane in instance.status()["lanes"]] == ["warm", "warm"])
        wait_until(lambda: any(line["event"] == "quarantine" for line in lines(log_file)))
        lanes = instance.status()["lanes"]
        found = lines(log_file)
    for lane in lanes:
        loaded = [line for line in found if (line["event"], line.get("lane")) == ("load", lane["name"])]
        assert len(loaded) == lane["warm"] > 0
    predicted = [line for line in found if told(line, "model", "method", "lane") == MEANT]
    assert sorted(line["bucket"] for line in predicted) == ["batch=1", "batch=2", "batch=4", "batch=8"]
    key = executable_file("predict", METHODS["predict"].buckets[0], fingerprint).rpartition("/")[2]
    assert [line["key"] for line in predicted if line["bucket"] == "batch=1"] == [key]
    # Set aside after one lane refused it, the other may not have come to see it.
    others = [line for line in found if line["event"] != "load"]
    assert {(line["event"], line.get("lane")) for line in others} >= {("refuse", "primary"), ("quarantine", None)}
    assert {line["event"] for line in others} == {"refuse", "quarantine"}
    assert {line["key"] for line in others} == {damaged.name}
    # To the other lane it is damaged too, or gone.
    assert all("damaged: it is " in line["reason"] for line in others if line.get("lane") != "cpu")
    assert {line["pid"] for line in found} == {instance.process.pid}
