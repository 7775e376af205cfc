"""The command line as a person and a shell meet it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warmpool.command import assert_one_line, warmpool
from warmpool import __version__
from warmpool.cache_commands.command import COMMANDS as CACHE_COMMANDS
from warmpool.cli import COMMANDS, main

# What only some commands need: each costs time or may not be installed where the others run.
HEAVY = {"cache.executable", "flax", "grpc", "jax", "jaxlib", "numpy", "optax", "orbax", "prometheus_client", "uvloop"}
ALLOWED: dict[str, set[str]] = {
    "publish": HEAVY - {"grpc", "prometheus_client", "uvloop"},
    "cache": {"jax", "jaxlib", "numpy"},  # `cache fill` compiles
}
STORE_FLAGS = ["--store", "--trusted-keys", "--distrusted-keys", "--signing-key", "--allow-unsigned"]


def loaded(*arguments):
    """The modules that a call of the command line has imported when it ends."""
    code = (
        "import json, sys\n"
        "from warmpool import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('\\n' + json.dumps(list(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_the_installed_command_is_this_one():
    command = Path(sys.executable).with_name("warmpool")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == f"warmpool {__version__}\n"


def test_the_version_is_told():
    result = warmpool("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"warmpool {__version__}\n", "")


def test_help_lists_every_command_with_what_it_is_for():
    result = warmpool("--help")
    assert (result.returncode, result.stderr) == (0, "")
    words = " ".join(result.stdout.split())
    for name, (_, summary) in COMMANDS.items():
        assert f"{name} {summary}" in words


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("publish", [*STORE_FLAGS, "--version", "--json"]),
        ("serve", [*STORE_FLAGS, "--host", "--port", "--grpc-port", "--accelerator", "--drain-s-max"]),
        ("serve", ["--otlp-endpoint"]),
        ("status", ["--url", "--json"]),
        ("traces", ["--url", "--json", "--cold", "--count"]),
    ],
)
def test_help_of_a_command_lists_its_flags(command, flags):
    result = warmpool(command, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: warmpool {command} ")
    summary = COMMANDS[command][1]
    assert f"{summary[0].upper()}{summary[1:]}." in " ".join(result.stdout.split())
    for flag in flags:
        assert f"\n  {flag} " in result.stdout, flag


def test_help_of_the_cache_lists_every_command_with_what_it_is_for():
    result = warmpool("cache", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    words = " ".join(result.stdout.split())
    for name, (_, summary) in CACHE_COMMANDS.items():
        assert f"{name} {summary}" in words


@pytest.mark.parametrize("command", CACHE_COMMANDS)
def test_every_cache_command_says_what_it_is_for_and_can_print_json(command):
    result = warmpool("cache", command, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: warmpool cache {command} ")
    summary = CACHE_COMMANDS[command][1]
    assert f"{summary[0].upper()}{summary[1:]}." in " ".join(result.stdout.split())
    assert "\n  --json " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "COMMAND"),
        (("cache",), "COMMAND"),
        (("cache", "bogus"), "bogus"),
        (("cache", "keygen"), "FILE"),
        (("serve", "--allow-unsigned=yes"), "--allow-unsigned"),
        (("bogus",), "bogus"),
        (("status", "--bogus"), "--bogus"),
        (("serve", "--accelerator", "abacus"), "abacus"),
        (("publish",), "required"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(arguments, words):
    result = warmpool(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("usage: warmpool")
    assert words in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_an_error_of_any_command_is_one_line_and_status_1(tmp_path):
    assert_one_line(warmpool("serve"), "serve", "--store")
    assert_one_line(warmpool("status", "--url", "nowhere"), "status", "nowhere")
    assert_one_line(warmpool("traces", "--url", "nowhere"), "traces", "nowhere")
    assert_one_line(warmpool("cache", "keygen", "/dev/null/key"), "cache", "keygen: ", "/dev/null/key")
    store = ("--store", str(tmp_path / "store"))
    model = str(tmp_path / "absent.py")
    assert_one_line(warmpool("publish", model, *store), "publish", "--trusted-keys", "--allow-unsigned")
    result = warmpool("publish", model, *store, "--allow-unsigned")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("warmpool publish: ")
    assert "absent.py" in result.stderr
    assert "Traceback" not in result.stderr


def test_importing_the_command_line_imports_no_command():
    modules = {module for module, _ in COMMANDS.values()}
    assert not loaded("--help") & (modules | HEAVY | {"asyncio", "msgspec", "rich"})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_imports_itself_and_no_other(command):
    found = loaded(command, "--help")
    others = {module for name, (module, _) in COMMANDS.items() if name != command}
    assert COMMANDS[command][0] in found
    assert not found & others
    assert not found & (HEAVY - ALLOWED.get(command, set()))


def test_asking_an_instance_that_is_not_there_imports_nothing_heavy_either():
    assert not loaded("status", "--url", "http://127.0.0.1:1") & HEAVY


def test_a_call_from_python_returns_the_status(capsys):
    assert main(["status", "--url", "nowhere"]) == 1
    assert capsys.readouterr().err.startswith("warmpool status: --url is 'nowhere'")


def test_who_stops_reading_gets_no_traceback(tmp_path):
    command = [sys.executable, "-m", "warmpool.cli", "cache", "keygen", str(tmp_path / "key")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
