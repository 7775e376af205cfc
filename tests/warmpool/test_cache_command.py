"""`warmpool cache`: every command explains itself, and is the only one that is imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.warmpool.cared_store import CaredStore
from tests.warmpool.command import assert_one_line, warmpool
from warmpool.cache_commands.command import COMMANDS

LIGHT = ("distrust", "gc", "keygen", "ls", "restore", "verify")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself_and_prints_json_if_asked_to(name):
    result = warmpool("cache", name, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: warmpool cache {name} ")
    summary = COMMANDS[name][1]
    assert summary[1:].split()[0] in result.stdout
    assert "--json" in result.stdout
    assert ("--store URI" in result.stdout) == (name != "keygen")


def test_the_group_lists_its_commands():
    result = warmpool("cache", "--help")
    assert result.returncode == 0
    listed = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("    ") and line[4] != " "]
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("ls", "--nonsense")])
def test_what_is_no_command_or_argument_is_wrong_usage(arguments):
    result = warmpool("cache", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "warmpool" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", [name for name in LIGHT if name != "keygen"])
def test_a_command_without_a_store_says_which_setting_is_missing(name):
    arguments = ("ab" * 32,) if name in {"distrust", "restore"} else ()
    assert_one_line(warmpool("cache", name, *arguments), "cache", "store is not set: give --store or WARMPOOL_STORE")


@pytest.mark.parametrize("name", [name for name in LIGHT if name not in {"keygen", "restore"}])
def test_settings_may_come_from_the_environment(name, tmp_path):
    CaredStore(tmp_path).publish()
    arguments = ("ab" * 32,) if name == "distrust" else ()
    environment = {"WARMPOOL_STORE": str(tmp_path / "store"), "WARMPOOL_ALLOW_UNSIGNED": "1"}
    result = warmpool("cache", name, "--json", *arguments, **environment)
    assert result.returncode == 0, result.stderr
    assert isinstance(json.loads(result.stdout), dict)


@pytest.mark.parametrize("name", LIGHT)
def test_caring_for_a_store_imports_neither_jax_nor_any_other_command(name):
    code = (
        "import sys\n"
        "from warmpool import cli\n"
        "try:\n    cli.main(['cache', sys.argv[1], '--help'])\n"
        "except SystemExit:\n    pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stderr.splitlines())
    assert f"warmpool.cache_commands.{name}" in loaded
    assert not loaded & {"jax", "jaxlib", "numpy", "rich"}
    others = {f"warmpool.cache_commands.{other}" for other in COMMANDS} - {f"warmpool.cache_commands.{name}"}
    assert not loaded & others
