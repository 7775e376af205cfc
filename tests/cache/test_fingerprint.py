"""A fingerprint names what decides whether an executable is valid, and any difference in it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from cache.fingerprint import Fingerprint, available_cores, cpu_features, fingerprint_of, topology_of


def cpu(**changes):
    described: dict[str, Any] = {
        "platform_name": "cpu",
        "platform_version": "cpu 1",
        "device_kind": "cpu",
        "device_count": 1,
    }
    return fingerprint_of(**described | changes)


def test_every_ingredient_has_a_value_here():
    ingredients = cpu().ingredients
    assert {name for name, value in ingredients.items() if not value} <= {"xla_flags"}
    assert ingredients["jaxlib"] == metadata.version("jaxlib")
    assert ingredients["machine"] == os.uname().machine


def test_the_same_client_has_the_same_fingerprint():
    assert cpu().digest == cpu().digest
    assert len(cpu().digest) == 16


@pytest.mark.parametrize("name", sorted(cpu().ingredients))
def test_a_change_of_any_ingredient_changes_the_digest(name):
    ours = cpu()
    other = dict(ours.ingredients) | {name: "other"}
    assert Fingerprint(other).digest != ours.digest
    assert ours.differences(other) == {name: (ours.ingredients[name], "other")}


@pytest.mark.parametrize("name", sorted(cpu().ingredients))
def test_an_ingredient_that_one_side_lacks_is_a_difference(name):
    ours = cpu()
    less = {other: value for other, value in ours.ingredients.items() if other != name}
    found = ours.differences(less)
    assert Fingerprint(less).digest != ours.digest
    # An empty value and none at all look the same in a message, but are not the same.
    assert found == {name: (ours.ingredients[name], "")}
    assert ours.differences(less | {"more": "x"})["more"] == ("", "x")


def test_equal_ingredients_have_no_differences_and_their_order_does_not_matter():
    ours = cpu()
    backwards = dict(reversed(ours.ingredients.items()))
    assert ours.differences(backwards) == {}
    assert Fingerprint(backwards).digest == ours.digest


def test_it_cannot_be_changed():
    ours = cpu()
    assert isinstance(ours.ingredients, MappingProxyType)
    with pytest.raises(AttributeError):
        ours.ingredients = {}


@pytest.mark.parametrize(
    "change",
    [
        {"platform_version": "cpu 2"},
        {"device_kind": "other"},
        {"device_count": 2},
        {"platform_name": "cuda"},
        {"topology": "0:0,0,0/0"},
    ],
)
def test_what_the_client_says_counts(change):
    assert cpu(**change).digest != cpu().digest


def chips(*coords, process=0, **more):
    """Devices as a TPU's client describes them."""
    return [
        SimpleNamespace(id=number, process_index=process, coords=one, core_on_chip=0, **more)
        for number, one in enumerate(coords)
    ]


def test_devices_of_one_process_without_coordinates_have_no_topology():
    devices = [SimpleNamespace(id=number, process_index=0) for number in range(8)]
    assert topology_of(devices) == ""
    assert "topology" not in cpu(topology="").ingredients, "what was stored before would not be found"


def test_devices_with_coordinates_have_one_in_the_order_of_their_ids():
    devices = chips([0, 0, 0], [1, 0, 0], [0, 1, 0])
    assert topology_of(devices) == topology_of(devices[::-1]) == "0:0,0,0/0 0:1,0,0/0 0:0,1,0/0"
    assert cpu(platform_name="tpu", topology=topology_of(devices)).ingredients["topology"] == topology_of(devices)


def test_other_coordinates_cores_and_processes_are_other_topologies():
    cores = [SimpleNamespace(id=number, process_index=0, coords=[0, 0, 0], core_on_chip=number) for number in (0, 1)]
    two = [SimpleNamespace(id=number, process_index=number) for number in (0, 1)]
    four = [SimpleNamespace(id=number, process_index=number // 2) for number in range(4)]
    found = [
        topology_of(devices)
        for devices in (
            chips([0, 0, 0], [1, 0, 0]),
            chips([1, 0, 0], [0, 0, 0]),
            chips([0, 0, 0], [11, 0, 0]),
            chips([0, 0, 0], [1, 10, 0]),
            chips([0, 0, 0], [1, 0, 0], process=1),
            cores,
            two,
            four,
        )
    ]
    assert len({*found, ""}) == len(found) + 1
    assert topology_of(four) == "0: 0: 1: 1:"


def test_the_processor_counts_where_it_runs_the_program_and_only_there():
    assert {"cpu_features", "cpu_cores"} <= cpu().ingredients.keys()
    assert not {"cpu_features", "cpu_cores"} & cpu(platform_name="cuda").ingredients.keys()


def install(folder, name, version, digest):
    dist_info = folder / f"{name}-{version}.dist-info"
    dist_info.mkdir()
    (dist_info / "RECORD").write_text(f"{name}/xla_plugin.so,sha256={digest},9\n{name}/__init__.py,sha256=no,1\n")
    return dist_info


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        ("jax_cuda12_plugin", "cuda"),
        ("jax_cuda13_pjrt", "gpu"),
        ("jax_rocm7_pjrt", "rocm"),
        ("libtpu", "tpu"),
        ("libtpu_nightly", "tpu"),
    ],
)
def test_the_build_of_a_plugin_counts_where_it_compiles_and_only_there(name, platform, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    host, without = cpu(), cpu(platform_name=platform)
    dist_info = install(tmp_path, name, "1.0", "a")
    one = cpu(platform_name=platform)
    assert f"{name}-1.0 sha256=a" in one.ingredients["plugins"]
    (dist_info / "RECORD").write_text(f"{name}/xla_plugin.so,sha256=b,9\n")
    rebuilt = cpu(platform_name=platform)
    dist_info.rename(tmp_path / f"{name}-1.1.dist-info")
    newer = cpu(platform_name=platform)
    assert len({each.digest for each in (without, one, rebuilt, newer)}) == 4
    assert cpu().digest == host.digest


def test_flags_of_libtpu_count_on_accelerators(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--b=2  --a=1")
    assert cpu(platform_name="tpu").ingredients["libtpu_flags"] == "--a=1 --b=2"
    assert "libtpu_flags" not in cpu().ingredients


def test_white_space_in_the_platforms_version_does_not_count():
    assert cpu(platform_version="a\n  b ").ingredients["platform_version"] == "a b"


def test_xla_flags_count_in_any_order(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--b=2  --a=1")
    flagged = cpu()
    assert flagged.ingredients["xla_flags"] == "--a=1 --b=2"
    monkeypatch.delenv("XLA_FLAGS")
    assert cpu().digest != flagged.digest


def test_cores_are_those_that_the_process_may_use():
    assert available_cores() == len(os.sched_getaffinity(0))
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from cache.fingerprint import available_cores; print(available_cores())"
    assert run(code) == "1"


def test_features_of_the_processor_are_sorted_and_many():
    features = cpu_features().split()
    assert features == sorted(features)
    assert len(features) > 5


def test_another_process_has_the_same_fingerprint_whatever_its_hash_seed():
    code = "from cache.fingerprint import fingerprint_of as f; "
    code += "print(f(platform_name='cpu', platform_version='cpu 1', device_kind='cpu', device_count=1).digest)"
    assert run(code, PYTHONHASHSEED="1") == run(code, PYTHONHASHSEED="2") == cpu().digest


def test_it_is_read_without_importing_jax_or_jaxlib():
    code = "import sys; from cache.fingerprint import fingerprint_of as f; "
    code += "f(platform_name='cpu', platform_version='', device_kind='', device_count=1); "
    code += "print({'jax', 'jaxlib', 'numpy'} & set(sys.modules))"
    assert run(code) == "set()"


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()
