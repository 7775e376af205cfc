"""`warmpool rollout`: each command on a signed store."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cache.signing import Signer
from tests.warmpool.cared_store import SIGNER, CaredStore, Outcome
from warmpool import cli
from warmpool import manifest as stored
from warmpool.manifest import RolloutSpec, Serving
from warmpool.rollout import serving_change
from warmpool.rollout.record import Event, Rollout, add_event, record_path


class RolloutStore(CaredStore):
    """With `toy` in two versions, the first of which is served."""

    def __init__(self, folder: Any, signer: Signer = SIGNER) -> None:
        super().__init__(folder, signer)
        self.publish(version="1")
        self.publish(version="2", stable=False)

    def rollout(self, capsys: Any, command: str, *arguments: str, key: bool = True) -> Outcome:
        """`warmpool rollout COMMAND`, with or without a key to sign with."""
        trust = (
            ("--signing-key", str(self.keys / "signer")) if key else ("--trusted-keys", str(self.keys / "signer.pub"))
        )
        capsys.readouterr()
        status = cli.main(["rollout", command, "--store", str(self.bottom.root), *trust, *arguments])
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    @property
    def serving(self) -> Serving:
        return msgspec.json.decode(self.store.get(stored.serving_path("toy")), type=Serving)

    def records(self) -> list[Rollout]:
        paths = sorted(f"rollouts/toy/{name}" for name in self.bottom.names("rollouts/toy"))
        return [msgspec.json.decode(self.bottom.get(path), type=Rollout) for path in paths]


@pytest.fixture
def cared(tmp_path: Any) -> RolloutStore:
    return RolloutStore(tmp_path)


def test_a_start_makes_a_canary_and_writes_down_who_did_it_and_why(cared: RolloutStore, capsys: Any) -> None:
    flags = ("--share", "0.25", "--mirror", "0.5", "--bake-s", "60", "--requests-min", "9", "--numerics", "finite")
    outcome = cared.rollout(capsys, "start", "toy@2", *flags, "--reason", "it is faster")
    told = "toy: 2 gets 25.0% of the requests beside 1; it is promoted by itself after 60 s and 9 requests\n"
    assert (outcome.status, outcome.out, outcome.err) == (0, told, "")
    serving = cared.serving
    assert (serving.stable, serving.canary, serving.share, serving.mirror) == ("1", "2", 0.25, 0.5)
    assert serving.rollout is not None
    assert (serving.rollout.bake_s, serving.rollout.requests_min, serving.rollout.numerics) == (60, 9, "finite")
    (record,) = cared.records()
    assert (record.state, record.events[0].reason, "@" in record.events[0].who) == ("running", "it is faster", True)


def test_a_promotion_and_the_way_back_from_it(cared: RolloutStore, capsys: Any, tmp_path: Any) -> None:
    log = ("--audit-log", str(tmp_path / "audit"))
    cared.rollout(capsys, "start", "toy@2", *log)
    assert cared.rollout(capsys, "promote", "toy", *log).out == "toy: 2 is stable; 1 stays warm\n"
    assert cared.serving == Serving(stable="2", previous="1", changed_s=cared.serving.changed_s)
    assert [record.state for record in cared.records()] == ["promoted"]
    assert cared.rollout(capsys, "rollback", "toy", *log).out == "toy: 2 was taken back, 1 is stable\n"
    assert cared.serving.versions == ("1",)
    said = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [(one["event"], one["version"], one["before"], one["key_id"]) for one in said] == [
        ("rollout", "2", "1", SIGNER.key_id),
        ("promote", "2", "2", SIGNER.key_id),
        ("rollback", "1", "2", SIGNER.key_id),
    ]


def test_a_canary_is_taken_back_and_may_be_started_anew_as_another_rollout(cared: RolloutStore, capsys: Any) -> None:
    cared.rollout(capsys, "start", "toy@2")
    assert cared.rollout(capsys, "rollback", "toy", "--reason", "no").out == "toy: 2 was taken back, 1 is stable\n"
    assert cared.serving.versions == ("1",)
    assert cared.rollout(capsys, "start", "toy@2").status == 0
    assert [record.state for record in cared.records()] == ["rolled back", "running"]


def test_without_a_key_a_canary_is_taken_back_by_the_record_alone(cared: RolloutStore, capsys: Any) -> None:
    cared.rollout(capsys, "start", "toy@2")
    outcome = cared.rollout(capsys, "rollback", "toy", "--reason", "it burns", key=False)
    assert outcome.status == 0
    assert "instances give 2 nothing any more; serving.json still names it" in outcome.out
    assert (cared.serving.canary, cared.records()[0].state) == ("2", "rolled back")
    outcome = cared.rollout(capsys, "promote", "toy")
    assert "version '2' was rolled back (it burns): `warmpool rollout start` starts it anew" in outcome.err
    assert cared.rollout(capsys, "start", "toy@2").status == 0
    assert [record.state for record in cared.records()] == ["rolled back", "running"]


@pytest.mark.parametrize(
    "command", [("start", "toy@2"), ("promote", "toy"), ("rollback", "toy"), ("retire", "toy")], ids=lambda one: one[0]
)
def test_without_a_key_nothing_else_is_changed(cared: RolloutStore, capsys: Any, command: tuple[str, ...]) -> None:
    outcome = cared.rollout(capsys, *command, key=False)
    assert (outcome.status, outcome.out) == (1, "")
    assert "give a signing key" in outcome.err
    assert cared.serving == Serving(stable="1")
    assert cared.records() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("start", "toy@3"), "version '3' of 'toy' is not published; there is 1, 2"),
        (("start", "toy@1"), "version '1' is stable already"),
        (("start", "toy"), "got 'toy'; allowed: MODEL@VERSION"),
        (("start", "other@2"), "model 'other' is not served; models in the store: toy"),
        (("start", "toy@2", "--share", "0.6"), "share is 0.6, allowed: 0 to 0.5"),
        (("start", "toy@2", "--bake-s", "-1"), "--bake-s is -1, allowed: 0 to 2592000"),
        (("start", "toy@2", "--requests-min", "0"), "--requests-min is 0, allowed: 1 to 1e9"),
        (("promote", "toy"), "there is no canary; version '1' is stable"),
        (("rollback", "toy"), "no version before '1' is kept warm"),
        (("retire", "toy"), "no version is kept warm besides '1'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    cared: RolloutStore, capsys: Any, arguments: tuple[str, ...], words: str
) -> None:
    outcome = cared.rollout(capsys, *arguments)
    assert (outcome.status, outcome.out, len(outcome.err.splitlines())) == (1, "", 1)
    assert outcome.err.startswith(f"warmpool rollout: {arguments[0]}: ")
    assert words in outcome.err
    assert cared.serving == Serving(stable="1")


def test_a_version_that_has_no_executables_or_takes_less_is_no_canary(cared: RolloutStore, capsys: Any) -> None:
    cared.publish(version="3", machines=(), stable=False)
    assert "has executables for no kind of machine" in cared.rollout(capsys, "start", "toy@3").err
    manifest = cared.publish(version="4", stable=False)
    small = tuple(msgspec.structs.replace(dim, max=1) for dim in manifest.dims)
    narrow = msgspec.structs.replace(manifest, dims=small)
    cared.store.put(stored.manifest_path("toy", "4"), stored.encode(narrow))
    assert (
        "version '4' cannot stand in for '1': it takes 'batch' up to 1" in cared.rollout(capsys, "start", "toy@4").err
    )


def test_who_comes_second_is_told_and_changes_nothing(cared: RolloutStore, capsys: Any, monkeypatch: Any) -> None:
    read = serving_change.read_serving

    def read_and_lose(store: Any, model: str) -> Any:
        found = read(store, model)
        cared.store.put(stored.serving_path("toy"), stored.encode(Serving(stable="2")))
        return found

    monkeypatch.setattr(serving_change, "read_serving", read_and_lose)
    outcome = cared.rollout(capsys, "start", "toy@2")
    assert "somebody else changed what is served of 'toy' meanwhile" in outcome.err
    assert cared.serving == Serving(stable="2")


def test_status_shows_what_is_served_and_each_decision_with_its_figures(cared: RolloutStore, capsys: Any) -> None:
    cared.rollout(capsys, "start", "toy@2", "--reason", "faster")
    serving = cared.serving
    assert serving.rollout is not None
    event = Event(
        what="rollback", time_s=0.0, who="pool-7", reason="it fails more often", figures={"canary_errors": 7.0}
    )
    new = Rollout(model="toy", stable="1", canary="2")
    add_event(cared.store, record_path("toy", serving.rollout), new, event)
    outcome = cared.rollout(capsys, "status", key=False)
    assert (outcome.status, outcome.err) == (0, "")
    shown = ("toy 1 -> 2: rolled back", "rollback by pool-7: it fails more often", "canary_errors 7", "10.0%")
    assert all(words in outcome.out for words in shown)
    (model,) = cared.rollout(capsys, "status", "toy", "--json", key=False).json()["models"]
    assert model["serving"]["canary"] == "2"
    assert [one["what"] for one in model["rollouts"][0]["events"]] == ["start", "rollback"]
    assert model["rollouts"][0]["state"] == "rolled back"


def test_status_of_what_cannot_be_read_is_a_problem_of_that_model_alone(cared: RolloutStore, capsys: Any) -> None:
    cared.publish(model="other")
    cared.bottom.put(stored.serving_path("other"), b"{}\n")
    outcome = cared.rollout(capsys, "status", "--json", key=False)
    problems = {model["model"]: bool(model["problem"]) for model in outcome.json()["models"]}
    assert (outcome.status, problems) == (1, {"other": True, "toy": False})


@pytest.fixture
def meanwhile(cared: RolloutStore, monkeypatch: Any) -> Callable[[str, Callable[[Serving], Serving]], None]:
    """Lets somebody else change what is served once a command has looked at it, and before it changes anything."""

    def arrange(command: str, change: Callable[[Serving], Serving]) -> None:
        module = importlib.import_module(f"warmpool.rollout_commands.{command}")

        def read_and_lose(store: Any, model: str) -> Any:
            found = serving_change.read_serving(store, model)
            if not changed:
                changed.append(change(found[0]))
                cared.store.put(stored.serving_path("toy"), stored.encode(changed[0]))
            return found

        changed: list[Serving] = []
        monkeypatch.setattr(module, "read_serving", read_and_lose)

    return arrange


def taken_back(serving: Serving) -> Serving:
    return Serving(stable=serving.stable, previous=serving.previous)


def test_a_canary_that_was_taken_back_meanwhile_is_so_and_stable_stays(
    cared: RolloutStore, capsys: Any, meanwhile: Any
) -> None:
    """Without a canary a rollback would go back from stable to what was so before it."""
    cared.publish(version="3", stable=False)
    cared.store.put(stored.serving_path("toy"), stored.encode(Serving(stable="2", previous="1")))
    cared.rollout(capsys, "start", "toy@3")
    meanwhile("rollback", taken_back)
    assert cared.rollout(capsys, "rollback", "toy").out == "toy: 3 was taken back already, 2 is stable\n"
    assert cared.serving == Serving(stable="2", previous="1")


@pytest.mark.parametrize(
    ("command", "change"),
    [
        (("rollback", "toy"), lambda one: Serving(stable="2", previous="1")),
        (("rollback", "toy"), lambda one: msgspec.structs.replace(one, rollout=RolloutSpec(started_s=5.0))),
        (("promote", "toy"), lambda one: msgspec.structs.replace(one, rollout=RolloutSpec(started_s=5.0))),
        (("promote", "toy"), lambda one: msgspec.structs.replace(one, canary="3")),
        (("start", "toy@2", "--share", "0.3"), taken_back),
    ],
    ids=["rollback promoted", "rollback another start", "promote another start", "promote another", "start none"],
)
def test_a_command_changes_the_rollout_that_it_looked_at_and_no_other(
    cared: RolloutStore, capsys: Any, meanwhile: Any, command: tuple[str, ...], change: Callable[[Serving], Serving]
) -> None:
    cared.rollout(capsys, "start", "toy@2")
    since = change(cared.serving)
    meanwhile(command[0], change)
    outcome = cared.rollout(capsys, *command)
    assert outcome.status == 1
    assert "somebody else changed what is served of 'toy' meanwhile: look at it" in outcome.err
    assert cared.serving == since


def test_stable_is_not_taken_back_for_a_canary_that_came_meanwhile(
    cared: RolloutStore, capsys: Any, meanwhile: Any
) -> None:
    since = Serving(stable="2", previous="1", canary="3", share=0.1)
    cared.store.put(stored.serving_path("toy"), stored.encode(Serving(stable="2", previous="1")))
    meanwhile("rollback", lambda _: since)
    assert "somebody else changed" in cared.rollout(capsys, "rollback", "toy").err
    assert cared.serving == since


def test_what_was_rolled_back_after_it_was_looked_at_is_not_promoted(
    cared: RolloutStore, capsys: Any, monkeypatch: Any
) -> None:
    cared.rollout(capsys, "start", "toy@2")
    change_serving = serving_change.change_serving

    def late(*what: Any) -> tuple[Serving, Serving]:
        spec = cared.serving.rollout
        assert spec is not None
        event = Event(what="rollback", time_s=0.0, who="pool-7", reason="it burns")
        add_event(cared.store, record_path("toy", spec), Rollout(model="toy", stable="1", canary="2"), event)
        return change_serving(*what)

    monkeypatch.setattr("warmpool.rollout_commands.telling.change_serving", late)
    assert "version '2' was rolled back (it burns)" in cared.rollout(capsys, "promote", "toy").err
    assert cared.serving.canary == "2"
