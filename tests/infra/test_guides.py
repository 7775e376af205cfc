"""Every command in every guide: what can be run here is run, in order, and shows what is shown; the rest exists."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.infra.cloud import Cloud, Revisions, answering
from tests.infra.guide import GUIDES, KINDS, ROOT, Reader, agrees, blocks, words
from tests.ports import free_port

pytestmark = pytest.mark.slow

MAKEFILE = (ROOT / "Makefile").read_text()
# Each goes on with what the ones before it left.
IN_ORDER = ("own-model.md", "upgrade-jaxlib.md", "compile-failures.md", "cost.md", "care.md")
ELSEWHERE = {"cat", "cp", "curl", "echo", "git", "uv"}  # tools whose flags are not ours to check
STACK_PORTS = ("GRPC_PORT", "HTTP_PORT_2", "GRPC_PORT_2", "GCS_PORT", "OTLP_PORT", "PROMETHEUS_PORT")


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    if "WARMPOOL_CI" not in os.environ and not shutil.which("curl"):
        pytest.skip("there is no curl")
    folder = tmp_path_factory.mktemp("reader")
    ports = {8000: free_port(), 8080: free_port()}
    stack = {name: str(free_port()) for name in ("HTTP_PORT", *STACK_PORTS)}
    variables = {
        **stack,
        "PORT": str(ports[8080]),
        "WARMPOOL_PORT": str(ports[8000]),
        "WARMPOOL_GRPC_PORT": "0",
        "STACK": str(folder / "stack"),
        "MODELS": "examples/digits/model.py",  # one of those that the guide has
    }
    reader = Reader(folder, ports, variables)
    yield reader
    reader.end()


@pytest.fixture(scope="module")
def followed():
    return []


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_a_guide_shows_is_what_happens(reader, followed, name):
    for before in IN_ORDER[len(followed) : IN_ORDER.index(name) + 1]:
        reader.follow(ROOT / "docs/guides" / before)
        followed.append(before)
    assert name in followed


def test_a_deployment_is_ready_and_judged_by_what_real_instances_say(reader, followed, tmp_path):
    """Only the cloud's tools are stood for: both revisions are an instance that has answered requests."""
    for before in IN_ORDER[len(followed) :]:
        reader.follow(ROOT / "docs/guides" / before)
        followed.append(before)
    base = f"http://127.0.0.1:{reader.port}"
    (reader.folder / "one.json").write_text('{"inputs": {"x": [[1]]}}')
    for command in (
        "warmpool serve 2>again.log &",
        f"curl --silent --fail --retry 60 --retry-delay 1 --retry-all-errors {base}/v2/health/ready",
        f"for turn in 1 2 3; do curl --silent --fail {base}/v1/models/toy:predict --data @one.json; done",
    ):
        status, said = reader.run(command)
        assert status == 0, said

    def instance(path):
        with urllib.request.urlopen(base + path[path.index("/", 1) :]) as answer:
            return answer.status, answer.read().decode()

    revisions = Revisions()
    revisions.first = instance
    with answering(revisions) as url:
        cloud = Cloud(tmp_path, url)
        done = cloud.make("deploy", ARGS="--canary-s 0 --requests-min 4")
        assert done.status == 2
        assert "an instance answered 3 requests" in done.err
        assert cloud.world["shares"] == {"pool-00001": 100}
        done = cloud.make("deploy", ARGS="--canary-s 0 --requests-min 3")
    assert done.status == 0, done.err
    assert "no worse: 0 of 3 requests failed" in done.err
    assert cloud.world["shares"] == {"pool-00003": 100}


def test_the_stack_of_the_guide_answers_a_first_call(reader):
    try:
        reader.follow(ROOT / "docs/guides/deploy.md")
    finally:
        reader.run("make down ARGS=--destroy CONFIRM=yes")


def test_every_guide_is_followed_or_has_nothing_to_run():
    for guide in GUIDES:
        runs = any(block.info == "console" for block in blocks(guide))
        assert (guide.name in {*IN_ORDER, "deploy.md"}) == runs, guide.name


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_a_guide_has_blocks_of_known_kinds_alone(guide):
    text = guide.read_text()
    found = blocks(guide)
    assert text.count("\n```") == 2 * len(found)
    for block in found:
        kind = re.sub(r"^python \S+$", "python NAME", block.info)
        assert kind in KINDS
        assert kind != "console cloud" or not any(command.shown for command in block.commands), "nobody has seen that"


def cloud_commands():
    return sorted(
        {
            command
            for guide in GUIDES
            for block in blocks(guide)
            if block.info == "console cloud"
            for line in block.commands
            for command in words(line.text)
        }
    )


def targets():
    return set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


@functools.cache
def help_of(*command):
    done = subprocess.run(
        [sys.executable, "-m", *command, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def flags_of(text):
    return set(re.findall(r"(?<!\S)--[a-z-]+", text))


@pytest.mark.parametrize("command", cloud_commands())
def test_a_command_that_needs_an_account_exists_with_its_flags(command):
    tool, *others = command.split()
    if tool == "make":
        given = dict(word.split("=", 1) for word in others if "=" in word and not word.startswith("-"))
        named = [word for word in re.sub(r'"[^"]*"', "", " ".join(others)).split() if "=" not in word]
        assert set(named) <= targets()
        assert all(re.search(rf"^{name} \?=", MAKEFILE, re.MULTILINE) for name in given)
        assert flags_of(given.get("ARGS", "").strip('"')) | flags_of(command) <= flags_of(help_of("infra.deploy"))
    elif tool == "uv" and "warmpool publish" in command:  # what it runs is ours
        test_a_command_that_needs_an_account_exists_with_its_flags(command[command.index("warmpool publish") :])
    elif tool == "uv" and others[:2] == ["pip", "compile"]:
        assert others[-1].startswith("infra/")
        assert (ROOT / others[-1]).is_file()
        if uv := shutil.which("uv") or shutil.which(ROOT / ".venv-tools/bin/uv"):
            known = subprocess.run([uv, "pip", "compile", "--help"], capture_output=True, text=True, check=True)
            assert flags_of(command) <= flags_of(known.stdout)
    elif tool == "warmpool":
        name = [others[0], *(others[1:2] if others[0] in {"cache", "rollout", "buckets"} else ())]
        assert flags_of(command) <= flags_of(help_of("warmpool.cli", *name))
    else:
        assert tool == "gcloud" or tool in ELSEWHERE, f"{tool} is not known here"


@pytest.mark.skipif(not shutil.which("gcloud"), reason="there is no gcloud whose flags could be compared")
def test_gcloud_knows_what_the_guides_ask_of_it(tmp_path):
    commands = [command for command in cloud_commands() if command.startswith("gcloud ")]
    file = tmp_path / "commands.json"
    file.write_text(
        json.dumps([{"command_string": command.replace("$service", "run").lower()} for command in commands])
    )
    done = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={file}"], capture_output=True, text=True,
        timeout=120, check=False, env={**os.environ, "CLOUDSDK_CONFIG": str(tmp_path)},
    )  # fmt: skip
    results = json.loads(done.stdout.splitlines()[0])
    assert {one["command_string"]: one["error_message"] for one in results if not one["success"]} == {}
    assert len(results) == len(commands)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_what_a_guide_names_in_passing_is_there(guide):
    text = guide.read_text()
    commands = {"publish", "serve", "status", "traces", "cache", "buckets", "rollout"}
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets()
    assert set(re.findall(r"`warmpool ([a-z]+)", text)) <= commands
    for group, name in re.findall(r"`warmpool (cache|rollout|buckets) ([a-z]+)", text):
        assert re.search(rf"^    {name} ", help_of("warmpool.cli", group), re.MULTILINE), name
    for link in re.findall(r"\]\(([^)#:]+)", text):
        assert (guide.parent / link).exists(), link
    for path in re.findall(r"`((?:infra|tests|\.ci|\.github)/[\w./-]+)", text):
        assert (ROOT / path.replace("/ENV", "/dev")).exists(), path


def test_every_threat_names_a_test_that_is_there():
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", (ROOT / "docs/guides/security.md").read_text(), re.MULTILINE)
    threats = [row for row in rows if row[0] not in {"threat", "---"}]
    assert len(threats) > 15
    for threat, _, shown in threats:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", shown)
        assert tests or shown == "`make lint`", threat
        for file, name in tests:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{name}"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_a_workflow_in_a_guide_calls_what_is_there(guide, tmp_path):
    for block in blocks(guide):
        if block.info != "yaml":
            continue
        file = tmp_path / "workflow.yml"
        file.write_text(block.text)
        checker = Path(sys.executable).with_name("check-jsonschema")
        command = [str(checker), "--builtin-schema", "vendor.github-workflows", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout
        for job in YAML(typ="safe").load(block.text)["jobs"].values():
            called = ROOT / job["uses"].partition("@")[0].removeprefix("OWNER/warmpool/")
            inputs = YAML(typ="safe").load(called.read_text())["on"]["workflow_call"]["inputs"]
            assert set(job["with"]) <= set(inputs)
            assert {name for name, one in inputs.items() if one.get("required")} <= set(job["with"])
            for name in ("targets", "pins"):
                assert isinstance(json.loads(job["with"][name]), list)


@pytest.mark.parametrize(
    ("shown", "said", "holds"),
    [
        (("a ... c",), "a b c\n", True),
        (("a ... c",), "a b\n", False),
        (("a", "...", "c"), "a\nb\nb\nc\n", True),
        (("a", "...", "c"), "a\nc\n", True),
        (("a", "..."), "b\na\n", False),
        (("...", "a"), "b\na\nb\n", False),
        ((" a  b",), " a    b  \n", True),
        (("a",), "a\nb\n", False),
        ((), "whatever\n", True),
    ],
)
def test_dots_stand_for_what_varies_and_for_nothing_else(shown, said, holds):
    assert agrees(shown, said) == holds
