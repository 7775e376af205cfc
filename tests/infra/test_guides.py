"""Every command in every guide: what asks no cloud is run, in order, and shows what is shown; the rest exists."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from infra.deploy.__main__ import parser
from infra.images import podman
from infra.stack import options as stack_options
from tests.infra.cloud import Cloud, Revisions, answering
from tests.infra.guide import GUIDES, KINDS, ROOT, Reader, agrees, blocks, lists, words
from tests.infra.planned import STAND_IN, provided
from tests.infra.sequences import BACK, DEPLOY, SEQUENCES
from tests.ports import free_port
from warmpool import cli

MAKEFILE = (ROOT / "Makefile").read_text()
# Each goes on with what the ones before it left.
IN_ORDER = ("own-model.md", "upgrade-jaxlib.md", "compile-failures.md", "own-function.md", "cost.md", "care.md")
IN_CHECKOUT = "deploy.md"
OTHERS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "infra/terraform/README.md")
BLOCKS = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ASKING = {*SEQUENCES, "deploy", "rollback"} - {"image", "infra-init"}
"""Of make's targets those that ask a cloud."""
TYPED = r"(?:\$ |make |warmpool |gcloud |git |terraform |podman |docker |uv |curl |pip |python )"
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
    missing = {
        "make image": ", ".join(podman.missing()),
        "make infra-init": "" if shutil.which("terraform") and STAND_IN.is_dir() else "terraform, or a provider for it",
    }
    lacking = () if "WARMPOOL_CI" in os.environ else tuple(name for name, why in missing.items() if why)
    if shutil.which("terraform"):
        variables["TF_CLI_CONFIG_FILE"] = provided().get("TF_CLI_CONFIG_FILE", "")
    reader = Reader(folder, ports, variables, lacking)
    yield reader
    reader.end()
    if (built := reader.tools / "built").exists():  # what others build from the same layers stays
        podman.run("podman", "rmi", "--force", "--no-prune", "--ignore", *built.read_text().split())


@pytest.fixture(autouse=True)
def _told_if_not_all_was_run(request):
    yield
    if "reader" in request.fixturenames and (left_out := request.getfixturevalue("reader").left_out):
        told = "; ".join(left_out)
        left_out.clear()
        pytest.skip(f"all was run but {told}, for which this machine lacks something")


@pytest.fixture(scope="module")
def followed():
    return []


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_ORDER)
def test_what_a_guide_shows_is_what_happens(reader, followed, name):
    for before in IN_ORDER[len(followed) : IN_ORDER.index(name) + 1]:
        reader.follow(ROOT / "docs/guides" / before)
        followed.append(before)
    assert name in followed


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_stack_of_the_guide_answers_a_first_call(reader):
    try:
        reader.follow(ROOT / "docs/guides" / IN_CHECKOUT, within_checkout=True)
    finally:
        reader.run("make down ARGS=--destroy CONFIRM=yes")


def test_every_guide_is_followed_or_has_nothing_to_run():
    for guide in GUIDES:
        runs = any(block.info == "console" for block in blocks(guide))
        assert (guide.name in {*IN_ORDER, IN_CHECKOUT}) == runs, guide.name


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_a_guide_has_blocks_of_known_kinds_alone(guide):
    text = guide.read_text()
    found = blocks(guide)
    assert text.count("\n```") == 2 * len(found)
    assert not re.search(rf"^~~~|^(\t| {{4,}}){TYPED}", BLOCKS.sub("", text), re.MULTILINE), "a block of another form"
    for block in found:
        kind = re.sub(r"^python \S+$", "python NAME", block.info)
        assert kind in KINDS
        assert kind != "console cloud" or not any(command.shown for command in block.commands), "nobody has seen that"
        if kind.startswith("console"):
            assert block.text.startswith("$ ")
        elif not kind.startswith("python"):
            assert not re.search(rf"^\s*{TYPED}", block.text, re.MULTILINE), "nobody runs that"


def asks_a_cloud(pipeline):
    """Whether anything of it does: Google's own tool, a store in a bucket, or what of make is about an environment."""
    for command in words(pipeline):
        tool, *others = command.split()
        if tool == "make":
            named = [word for word in re.sub(r'"[^"]*"', "", " ".join(others)).split() if "=" not in word]
            if named and set(named) <= ASKING and "DRY_RUN" not in command:
                return True
        elif tool == "gcloud" or "gs://" in command:
            return True
    return False


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_what_asks_no_cloud_is_not_marked_as_if_it_did(guide):
    for block in blocks(guide):
        if block.info == "console cloud":
            for command in block.commands:
                for pipeline in lists(command.text):
                    assert asks_a_cloud(pipeline), f"{pipeline}: needs no account, so it has to be run"


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("gcloud auth login", True),
        ("for one in a b; do gcloud enable $one; done", True),
        ("gcloud logging read x | warmpool traces --file -", True),
        ('curl --header "x: $(gcloud auth print-identity-token)" URL', True),
        ("warmpool publish toy.py --store gs://BUCKET", True),
        ("warmpool publish toy.py --store store", False),
        ("make push", True),
        ('make deploy ARGS="--canary-s 60"', True),
        ("make infra-up DRY_RUN=1", False),
        ("make image push", False),
        ("make image", False),
        ("make infra-init", False),
        ("make", False),
        ("gcloud auth login && make lock", False),
        ("for one in a; do make lock; gcloud enable $one; done", False),
        ("cat keys/a.pub >keys/b.pub", False),
    ],
)
def test_it_is_known_of_a_line_whether_all_of_it_asks_a_cloud(line, marked):
    assert all(asks_a_cloud(pipeline) for pipeline in lists(line)) == marked


def test_targets_that_ask_a_cloud_do_and_the_others_do_not():
    sequences = {**SEQUENCES, "deploy": DEPLOY, "rollback": [BACK]}
    asks = re.compile(r"gcloud |terraform \S+ (plan|apply|show|output) ")
    assert {name for name, commands in sequences.items() if any(map(asks.match, commands))} == ASKING


def test_what_guides_leave_to_ci_it_does():
    parts = re.search(r"^check: (.+?) ##", MAKEFILE, re.MULTILINE)
    ran = (ROOT / ".ci/run").read_text()
    assert parts
    assert all(re.search(rf"^(make .* {part} |tests {part} )", ran, re.MULTILINE) for part in parts[1].split())


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
    """What `warmpool COMMAND --help` says."""
    with contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit):
        cli.main([*command, "--help"])
    return said.getvalue()


@functools.cache
def all_help():
    groups = {name: re.findall(r"^    ([a-z]+) ", help_of(name), re.MULTILINE) for name in cli.COMMANDS}
    commands = [(name, *one) for name, inner in groups.items() for one in ([], *([of] for of in inner))]
    return "".join(help_of(*command) for command in commands) + parser().format_help()


def flags_of(text):
    return set(re.findall(r"(?<!\S)--[a-z-]+", text))


@functools.cache
def variables():
    """Make's own, and those that the stack takes."""
    stack = argparse.ArgumentParser()
    stack_options.add_arguments(stack, {})
    return {one.dest.upper() for one in stack._actions} | set(re.findall(r"^([A-Z_0-9]+) \?=", MAKEFILE, re.MULTILINE))


def check_exists(command):
    """Fail if a command names a target, a variable, a command or a flag that is not there."""
    tool, *others = command.split()
    if tool == "make":
        given = dict(re.findall(r'(\w+)=("[^"]*"|\S*)', command))
        named = [word for word in re.sub(r'"[^"]*"', "", " ".join(others)).split() if "=" not in word]
        assert set(named) <= targets()
        assert given.keys() <= variables()
        if set(named) & {*SEQUENCES, "deploy", "rollback"}:
            assert flags_of(given.get("ARGS", "").strip('"')) <= flags_of(parser().format_help())
    elif tool == "warmpool":
        assert others[0] in cli.COMMANDS
        name = [others[0], *(others[1:2] if others[0] in {"cache", "rollout", "buckets"} and others[1:2] else ())]
        assert flags_of(command) <= flags_of(help_of(*name))
    else:
        assert tool in {"gcloud", "curl"}, f"{tool} is not known here"


@pytest.mark.parametrize("command", cloud_commands())
def test_a_command_that_needs_an_account_exists_with_its_flags(command):
    check_exists(command)


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


@pytest.mark.parametrize("guide", [*GUIDES, *OTHERS], ids=lambda guide: str(guide.relative_to(ROOT)))
def test_what_a_guide_names_in_passing_is_there(guide):
    text = guide.read_text()
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", BLOCKS.sub("", text)):
        words_of = span.split()
        if words_of[0] in {"make", "warmpool"} and len(words_of) > 1:
            check_exists(span)
        elif span.startswith("--"):
            assert flags_of(span) <= flags_of(all_help()), span
        elif named := re.match(r"([A-Z]+)=", span):
            assert named[1] in variables(), span
    for link in re.findall(r"\]\((?!https:)([^)#:]+)", text):
        assert (guide.parent / link).exists(), link
    for path in re.findall(r"`((?:infra|tests|\.ci|\.github)/[\w./-]+)", text):
        assert (ROOT / path.replace("/ENV", "/dev")).exists(), path


def test_what_the_readme_has_one_type_exists_and_its_model_and_function_are_as_they_are_tried():
    readme = blocks(ROOT / "README.md")
    typed = [line for block in readme if not block.info for line in block.text.splitlines()]
    commands = [re.sub(r"^([A-Z_]+=\S+ )?(\.venv/bin/)?", "", line) for line in typed]
    checked = [command.partition("#")[0] for command in commands if re.match(TYPED, command)]
    for command in checked:
        check_exists(command)
    assert len(checked) > 10
    model, function = (block.text for block in readme if block.info == "python")
    (tried,) = (block.text for block in blocks(ROOT / "docs/guides/own-function.md") if block.info.startswith("python"))
    assert function == tried
    declared: dict[str, Any] = {}
    exec(compile(model, "toy.py", "exec"), declared)
    assert declared["model"].name == "toy"


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
