"""`warmpool status`: what it prints of an instance as it is, and of states that are hard to bring about."""

import io
import json
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tests.instance_process import InstanceProcess, wait_until
from tests.warmpool.command import warmpool
from warmpool import __version__
from warmpool.compiling.shown import Compiling
from warmpool.status_command import (
    Churn,
    Circuit,
    Cost,
    Lane,
    Memory,
    Model,
    Rollout,
    Status,
    StoreStatus,
    Version,
    show,
    show_costs,
)

PRIMARY = Lane(
    name="primary",
    pid=4711,
    state="warm",
    warm=12,
    planned=13,
    batches=5,
    restarts=1,
    last_end="",
    circuit=Circuit("closed", "", None),
    compiles=0,
    resident_bytes=300 << 20,
    missing={},
    cold={},
    memory=Memory(bytes=70 << 20, bytes_max=96 << 20, evicted=1),
    costs=[
        Cost("tiny", "tokens", {"batch": 8, "seq": 16}, 50.0, 1234.5, 20000.0, 7),
        Cost("a[b]", "m", {}, 1, 2, 3, 0),
    ],
)
DOWN = Lane(
    name="cpu",
    pid=None,
    state="down",
    warm=0,
    planned=0,
    batches=0,
    restarts=7,
    last_end="was ended: a run took longer than 10 s",
    circuit=Circuit("open", "it failed [5] times", 12.5),
    compiles=None,
    resident_bytes=None,
    missing={"embed": "it was not published for this kind of machine"},
    cold={"tiny:predict batch=4": "artifact [/red] 0123: not what its digest says [bold]"},
    memory=Memory(bytes=0, bytes_max=0, evicted=0),
    costs=[Cost("tiny", "tokens", {"batch": 8, "seq": 16}, 50.0, 306.0, 918.0, 0)],
)


def drawn(status, width=130):
    console = Console(file=io.StringIO(), width=width, highlight=False, record=True)
    show(console, status)
    return console.export_text()


def drawn_costs(*lanes):
    console = Console(file=io.StringIO(), width=130, highlight=False, record=True)
    show_costs(console, [*lanes])
    return [line.split() for line in console.export_text().splitlines()]


def status_of(*lanes, **changed):
    fields: dict[str, Any] = {
        "version": "0.1.0",
        "state": "serving",
        "ready": True,
        "reasons": {},
        "models": {"tiny": Model(version="7", ready=True, methods=["predict", "tokens"])},
        "store": StoreStatus(trouble="", quarantined=0),
        "churn": Churn("steady", 0, 0.0),
        "compiling": Compiling("idle"),
        "lanes": list(lanes),
        "rows_waiting": 3,
    }
    return Status(**(fields | changed))


def cells(text, first):
    """The words of the line that begins with one."""
    (line,) = (line for line in text.splitlines() if line.split()[:1] == [first])
    return line.split()


def test_a_warm_instance_is_shown_with_its_models_and_lanes(instance):
    result = warmpool("status", "--url", f"http://127.0.0.1:{instance.port}")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"warmpool {__version__}  serving, ready  0 rows waiting\n")
    status = instance.status()
    assert cells(result.stdout, "second") == ["second", "1", "yes", "predict"]
    for lane in status["lanes"]:
        shown = cells(result.stdout, lane["name"])
        assert shown[1:5] == [str(lane["pid"]), "warm", f"{lane['warm']}/{lane['planned']}", "0"]
        assert shown[5:7] == [str(lane["memory"]["bytes"] >> 20), "MiB"]
        assert shown[9] == "0"


def test_json_is_the_instances_own_document(instance):
    wait_until(lambda: instance.status()["churn"]["state"] == "steady")
    result = warmpool("status", "--json", "--url", f"http://127.0.0.1:{instance.port}/")
    assert (result.returncode, result.stderr) == (0, "")
    printed, asked = json.loads(result.stdout), instance.status()
    assert printed.keys() == asked.keys()
    for lane in (*printed["lanes"], *asked["lanes"]):
        del lane["resident_bytes"]  # it breathes
    assert printed == asked
    for lane in printed["lanes"]:
        assert (type(lane["name"]), type(lane["pid"]), type(lane["state"])) == (str, int, str)


def test_an_instance_that_is_not_ready_is_shown_and_told_by_the_exit_status(tmp_path):
    (tmp_path / "store").mkdir()
    with InstanceProcess(tmp_path / "store", tmp_path / "log") as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        table, document = (
            warmpool("status", *flags, "--url", f"http://127.0.0.1:{instance.port}") for flags in ((), ("--json",))
        )
    assert [(result.returncode, result.stderr) for result in (table, document)] == [(3, ""), (3, "")]
    assert "not ready" in table.stdout
    assert json.loads(document.stdout)["ready"] is False


def test_a_table_shows_a_lane_as_it_is():
    text = drawn(status_of(PRIMARY))
    columns = ["lane", "pid", "state", "warm", "evicted", "held", "batches", "restarts", "compiles", "memory"]
    assert cells(text, "lane") == columns
    held = ["70", "MiB", "of", "96", "MiB"]
    assert cells(text, "primary") == ["primary", "4711", "warm", "12/13", "1", *held, "5", "1", "0", "300", "MiB"]
    assert cells(text, "tiny") == ["tiny", "7", "yes", "predict,", "tokens"]


def test_costs_are_shown_for_every_lane_in_milliseconds():
    assert drawn_costs(PRIMARY, DOWN) == [
        ["lane", "batch", "published", "predicted", "bound", "runs"],
        ["primary", "tiny:tokens", "batch=8,seq=16", "0.05", "ms", "1.23", "ms", "20", "ms", "7"],
        ["primary", "a[b]:m", "*", "0.001", "ms", "0.002", "ms", "0.003", "ms", "0"],
        ["cpu", "tiny:tokens", "batch=8,seq=16", "0.05", "ms", "0.306", "ms", "0.918", "ms", "0"],
    ]


def test_costs_of_a_running_instance_are_those_of_its_document_and_shown_only_if_asked_for(instance):
    url = f"http://127.0.0.1:{instance.port}"
    instance.infer("predict", x=[[1, 2, 3, 4]])
    plain, with_costs = warmpool("status", "--url", url), warmpool("status", "--costs", "--url", url)
    assert (with_costs.returncode, with_costs.stderr) == (0, "")
    assert "predicted" not in plain.stdout
    shown = [line.split()[:3] for line in with_costs.stdout.split("predicted")[1].splitlines()[1:]]
    assert ["primary", "tiny:predict", "batch=1"] in shown
    assert len(shown) == sum(len(lane["costs"]) for lane in instance.status()["lanes"])


def test_what_is_not_known_is_a_dash_and_every_reason_is_a_line():
    text = drawn(status_of(PRIMARY, DOWN, ready=False, reasons={"": "the instance is draining", "tiny": "not [warm]"}))
    assert "serving, not ready  3 rows waiting" in text
    assert "  instance: the instance is draining\n" in text
    assert "  tiny: not [warm]\n" in text
    assert cells(text, "cpu") == ["cpu", "-", "down", "0/0", "0", "0", "MiB", "0", "7", "-", "-"]
    assert "  cpu: the last one was ended: a run took longer than 10 s\n" in text
    assert "  cpu: it is down: it failed [5] times; it is tried again in 12.5 s\n" in text
    assert "on trial" not in text
    assert "primary: it is" not in text
    assert "  cpu: embed: it was not published for this kind of machine\n" in text
    assert "  cpu: tiny:predict batch=4: artifact [/red] 0123: not what its digest says [bold]\n" in text


def test_a_lane_on_trial_is_told():
    trial = msgspec.structs.replace(PRIMARY, circuit=Circuit("half-open", "2 trials failed", None))
    assert "  primary: it is on trial: 2 trials failed\n" in drawn(status_of(trial))


def test_trouble_with_the_store_and_what_was_set_aside_is_told_and_only_then():
    text = drawn(
        status_of(PRIMARY, store=StoreStatus(trouble="'models' [/red]: Stale file handle " * 4, quarantined=2))
    )
    assert "  store: " + "'models' [/red]: Stale file handle " * 3 + "'models'" in text
    assert "  2 executables quarantined: `warmpool cache ls`\n" in text
    assert "store" not in drawn(status_of(PRIMARY))
    assert "quarantined" not in drawn(status_of(PRIMARY))


@pytest.mark.parametrize(
    ("churn", "line"),
    [
        (Churn("filling", 12, 29.6), "  filling: 12 executables are missing, steady in about 30 s\n"),
        (Churn("churning", 3, None), "  churning: 3 executables are missing, it is not known when it will be steady\n"),
    ],
)
def test_what_is_missing_is_told_and_how_long_that_will_be_so(churn, line):
    assert line in drawn(status_of(PRIMARY, churn=churn))
    assert "missing" not in drawn(status_of(PRIMARY))


def test_a_reason_is_never_broken_into_lines():
    text = drawn(status_of(PRIMARY, reasons={"tiny": "why " * 100}), width=60)
    assert "  tiny: " + "why " * 99 + "why" in text


@pytest.mark.parametrize("field", ["ready", "lanes", "reasons", "store", "churn"])
def test_a_document_without_what_is_shown_is_another_versions(field):
    document = msgspec.to_builtins(status_of(PRIMARY))
    assert msgspec.convert(document, Status) == status_of(PRIMARY)
    del document[field]
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert(document, Status)


def test_versions_beside_the_one_that_gets_requests_are_lines_and_one_that_is_refused_says_why():
    versions = {
        "7": Version("serving", ""),
        "8": Version("refused", "nothing is stored under 'weights/x'"),
        "6": Version("warm", ""),
    }
    model = Model(version="7", ready=True, methods=["predict"], versions=versions)
    shown = drawn(status_of(PRIMARY, models={"tiny": model}))
    assert "  tiny: version 8 is refused: nothing is stored under 'weights/x'\n  tiny: version 6 is warm\n" in shown
    assert "version 7" not in shown


def test_a_rollout_under_way_is_a_line_with_what_is_concluded_by_now():
    rollout = Rollout(stable="1", canary="[2]", verdict="continue", reason="watched for 7 s of 600")
    text = drawn(status_of(PRIMARY, rollouts={"tiny": rollout}))
    assert "tiny: [2] beside 1: continue (watched for 7 s of 600)" in text
