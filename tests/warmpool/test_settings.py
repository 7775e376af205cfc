"""Settings are read once: flags over the environment over defaults; what is not allowed is named."""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import Any

import pytest

from cache.settings import StoreSettings
from warmpool import serve
from warmpool.settings import ACCELERATORS, PortTaken, SettingError, Settings, add_store_flags, read_settings

OTHERS: dict[str, Any] = {
    "store": "elsewhere",
    "trusted_keys": "keys/publisher.pub,more-keys",
    "distrusted_keys": "ab" * 32,
    "allow_unsigned": True,
    "signing_key": "keys/publisher",
    "encryption_key": "keys/at-rest",
    "audit_log": "-",
    "cache_folder": "/var/cache/warmpool",
    "cache_bytes_max": 8,
    "host": "0.0.0.0",
    "port": 1,
    "grpc_port": 2,
    "accelerator": "jax",
    "deadline_ms": 3,
    "drain_s_max": 4.5,
    "run_s_max": 7.5,
    "load_s_max": 8.5,
    "queue_rows_max": 5,
    "lane_memory_bytes_max": 1 << 30,
    "gather_ms": 1.5,
    "priority_aging_ms": 20,
    "model_weights": "digits=2,embed=0.5",
    "compile": "off",
    "compile_s_max": 30.5,
    "compile_cpu_s_max": 60.5,
    "compile_memory_bytes_max": 1 << 31,
    "queue_bytes_max": 10,
    "body_bytes_max": 6,
    "traces_kept_max": 7,
    "otlp_endpoint": "http://collector:4318",
}
ONLY_SERVED = {"cache_folder", "cache_bytes_max"}  # no other command reads copies, so none has a flag for them
FLAGS = {  # given, meant; what has to be of a kind
    "accelerator": ("none", "none"),
    "allow_unsigned": ("no", False),
    "otlp_endpoint": ("https://9", "https://9"),
    "model_weights": ("nine=9", "nine=9"),
    "compile": ("auto", "auto"),
}


def test_there_is_a_test_value_for_every_setting():
    assert OTHERS.keys() == {field.name for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize("name", OTHERS)
def test_every_setting_is_read_from_the_environment_and_from_a_flag_and_the_flag_wins(name):
    environment = {"WARMPOOL_STORE": "s", f"WARMPOOL_{name.upper()}": str(OTHERS[name])}
    assert getattr(read_settings(Settings, {}, environment), name) == OTHERS[name]
    assert getattr(read_settings(Settings, {"store": "s", name: str(OTHERS[name])}, {}), name) == OTHERS[name]
    given, meant = FLAGS.get(name, ("9", type(OTHERS[name])("9")))
    assert OTHERS[name] != meant
    assert getattr(read_settings(Settings, {"store": "s"} | {name: given}, environment), name) == meant


def test_what_opens_a_store_is_read_alone_by_commands_that_do_not_serve():
    names = [field.name for field in dataclasses.fields(StoreSettings)]
    environment = {f"WARMPOOL_{name.upper()}": str(value) for name, value in OTHERS.items()}
    assert read_settings(StoreSettings, {}, environment) == StoreSettings(**{name: OTHERS[name] for name in names})


@pytest.mark.parametrize(
    ("flags", "environment"), [({"audit_log": "-"}, {}), ({}, {"WARMPOOL_AUDIT_LOG": "-"})], ids=["flag", "variable"]
)
def test_one_document_and_lines_of_an_audit_log_do_not_go_to_the_same_place(flags, environment):
    flags |= {"store": "s"}
    with pytest.raises(SettingError, match=r"^audit_log is '-', allowed with --json: a file"):
        read_settings(StoreSettings, flags | {"json": True}, environment)
    assert read_settings(StoreSettings, flags | {"json": False}, environment).audit_log == "-"
    assert read_settings(StoreSettings, flags | {"json": True, "audit_log": "file"}, environment).audit_log == "file"


@pytest.mark.parametrize("kind", [StoreSettings, Settings])
@pytest.mark.parametrize("size", ["-1", "-5", str(1 << 63)])
def test_a_size_of_copies_that_is_none_is_refused_whoever_reads_it(kind, size):
    with pytest.raises(SettingError, match=f"^cache_bytes_max is {size}, allowed: 0 for no copies, or a size in bytes"):
        read_settings(kind, {"store": "folder"}, {"WARMPOOL_CACHE_BYTES_MAX": size})


@pytest.mark.parametrize(("kind", "add"), [(StoreSettings, add_store_flags), (Settings, serve.add_arguments)])
def test_every_setting_has_a_flag_and_none_is_taken_for_given(kind, add):
    parser = argparse.ArgumentParser()
    add(parser)
    unused = ONLY_SERVED if kind is StoreSettings else set[str]()
    assert vars(parser.parse_args([])) == dict.fromkeys(
        field.name for field in dataclasses.fields(kind) if field.name not in unused
    )
    given = parser.parse_args(["--store", "s", "--allow-unsigned", "--trusted-keys", "a,b"])
    settings = read_settings(kind, vars(given), {"WARMPOOL_ALLOW_UNSIGNED": "0", "WARMPOOL_TRUSTED_KEYS": "c"})
    assert (settings.allow_unsigned, settings.trusted_keys) == (True, "a,b")


@pytest.mark.parametrize("text", ["1", "true", "True", "YES"])
def test_a_switch_is_turned_on_from_the_environment(text):
    assert read_settings(Settings, {"store": "s"}, {"WARMPOOL_ALLOW_UNSIGNED": text}).allow_unsigned is True


@pytest.mark.parametrize("text", ["0", "false", "No", ""])
def test_a_switch_is_turned_off_from_the_environment(text):
    assert read_settings(Settings, {"store": "s"}, {"WARMPOOL_ALLOW_UNSIGNED": text}).allow_unsigned is False


def test_what_is_not_given_has_its_default():
    assert read_settings(Settings, {"store": "s", "port": None}, {}) == Settings(store="s")


def test_an_empty_variable_is_as_good_as_none():
    assert read_settings(Settings, {"store": "s"}, {"WARMPOOL_PORT": "", "PORT": ""}).port == 8000


def test_cloud_runs_port_counts_where_our_own_is_not_set():
    assert read_settings(Settings, {"store": "s"}, {"PORT": "81"}).port == 81
    assert read_settings(Settings, {"store": "s"}, {"PORT": "81", "WARMPOOL_PORT": "82"}).port == 82
    assert read_settings(Settings, {"store": "s", "port": "83"}, {"PORT": "81"}).port == 83


def test_the_standard_variable_for_traces_counts_where_our_own_is_not_set():
    standard = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}
    assert read_settings(Settings, {"store": "s"}, standard).otlp_endpoint == "http://a"
    assert (
        read_settings(Settings, {"store": "s"}, {**standard, "WARMPOOL_OTLP_ENDPOINT": "http://b"}).otlp_endpoint
        == "http://b"
    )


def test_without_a_store_it_is_said_how_to_give_one():
    with pytest.raises(SettingError, match=r"^store is not set: give --store or WARMPOOL_STORE"):
        read_settings(Settings, {}, {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("port", "http", "port is 'http', allowed: a whole number"),
        ("port", "80.5", "port is '80.5', allowed: a whole number"),
        ("port", "-1", "port is -1, allowed: 0 to 65535"),
        ("port", "65536", "port is 65536, allowed: 0 to 65535"),
        ("grpc_port", "65536", "grpc_port is 65536, allowed: 0 to 65535"),
        ("drain_s_max", "soon", "drain_s_max is 'soon', allowed: a number"),
        ("drain_s_max", "nan", "drain_s_max is nan, allowed: more than 0, up to 86400"),
        ("drain_s_max", "inf", "drain_s_max is inf, allowed: more than 0, up to 86400"),
        ("run_s_max", "0", "run_s_max is 0.0, allowed: more than 0, up to 86400"),
        ("load_s_max", "inf", "load_s_max is inf, allowed: more than 0, up to 86400"),
        ("drain_s_max", "0", "drain_s_max is 0.0, allowed: more than 0, up to 86400"),
        ("deadline_ms", "0", "deadline_ms is 0, allowed: more than 0, up to 86400000"),
        ("queue_rows_max", "0", "queue_rows_max is 0, allowed: more than 0, up to 2147483647"),
        ("body_bytes_max", "-5", "body_bytes_max is -5, allowed: more than 0, up to 2147483647"),
        ("traces_kept_max", "0", "traces_kept_max is 0, allowed: more than 0, up to 100000"),
        ("deadline_ms", "86400001", "deadline_ms is 86400001, allowed: more than 0, up to 86400000"),
        ("body_bytes_max", "2147483648", "body_bytes_max is 2147483648, allowed: more than 0, up to 2147483647"),
        ("queue_rows_max", "1" + "0" * 30, f"queue_rows_max is 1{'0' * 30}, allowed: more than 0, up to 2147483647"),
        ("traces_kept_max", "100001", "traces_kept_max is 100001, allowed: more than 0, up to 100000"),
        ("drain_s_max", "1e9", "drain_s_max is 1000000000.0, allowed: more than 0, up to 86400"),
        ("allow_unsigned", "maybe", "allow_unsigned is 'maybe', allowed: 1, true, yes, 0, false, no"),
        ("allow_unsigned", "2", "allow_unsigned is '2', allowed: 1, true, yes, 0, false, no"),
        ("gather_ms", "-1", "gather_ms is -1.0, allowed: 0 to 10000"),
        ("lane_memory_bytes_max", "-1", "lane_memory_bytes_max is -1, allowed: 0 to 9007199254740992"),
        ("lane_memory_bytes_max", "2G", "lane_memory_bytes_max is '2G', allowed: a whole number"),
        ("compile", "on", "compile is 'on', allowed: auto, off"),
        ("compile_s_max", "0", "compile_s_max is 0.0, allowed: more than 0, up to 86400"),
        ("compile_cpu_s_max", "nan", "compile_cpu_s_max is nan, allowed: more than 0, up to 86400"),
        ("compile_memory_bytes_max", "-1", "compile_memory_bytes_max is -1, allowed: 0 to 9007199254740992"),
        ("gather_ms", "nan", "gather_ms is nan, allowed: 0 to 10000"),
        ("priority_aging_ms", "0", "priority_aging_ms is 0, allowed: more than 0, up to 86400000"),
        *(
            (
                "model_weights",
                text,
                (
                    f"model_weights is {text!r}, allowed: MODEL=WEIGHT pairs after commas, each model once, "
                    "weights from 0.001 to 1000"
                ),
            )
            for text in ("digits", "digits=", "=2", "a=1,a=2", "a=0", "a=-1", "a=nan", "a=1001", "a=1,", "a=1e3")
        ),
        ("accelerator", "gpu", "accelerator is 'gpu', allowed: auto, none, jax"),
    ],
)
def test_what_is_not_allowed_is_named(name, value, message):
    with pytest.raises(SettingError) as caught:
        read_settings(Settings, {"store": "s", name: value}, {})
    assert str(caught.value) == message


def test_weights_are_given_by_model():
    assert Settings(store="s", model_weights="digits=2, embed=0.5").weights == {"digits": 2.0, "embed": 0.5}
    assert Settings(store="s").weights == {}


@pytest.mark.parametrize("edge", [{"port": 0}, {"port": 65535}, {"grpc_port": 0}, {"deadline_ms": 1}])
def test_edges_are_allowed(edge):
    settings = Settings(store="s", **edge)
    assert {name: getattr(settings, name) for name in edge} == edge


@pytest.mark.parametrize(
    "endpoint",
    [
        "nonsense",
        "collector:4318",
        "--",
        "ftp://collector",
        "http://",
        "http:///v1",
        "http://a b",
        "http://a:port",
        "http://a?b",
    ],
)
def test_an_endpoint_that_is_no_base_url_is_refused_at_the_start(endpoint):
    with pytest.raises(SettingError, match=r"^otlp_endpoint is '.*', allowed: http://HOST"):
        Settings(store="s", otlp_endpoint=endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "-",
        "http://collector",
        "https://collector:4318/",
        "http://[::1]:4318/otlp",
        "HTTP://user:word@127.0.0.1:1/a/b",
    ],
)
def test_an_endpoint_that_is_a_base_url_is_taken(endpoint):
    assert Settings(store="s", otlp_endpoint=endpoint).otlp_endpoint == endpoint


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_every_accelerator_is_allowed(accelerator):
    assert Settings(store="s", accelerator=accelerator).accelerator == accelerator


def test_an_empty_store_is_refused():
    with pytest.raises(SettingError, match=r"^store is '', allowed: a folder's path, file:///folder or gs://"):
        read_settings(Settings, {"store": ""}, {"WARMPOOL_STORE": "s"})
    with pytest.raises(SettingError, match=r"^store is not set"):
        read_settings(Settings, {}, {"WARMPOOL_STORE": ""})


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings(store="s").port = 1  # type: ignore[misc]


def test_every_limit_is_finite_by_default():
    assert all(math.isfinite(value) for value in vars_of(Settings(store="s")) if isinstance(value, int | float))


def vars_of(settings):
    return [getattr(settings, field.name) for field in dataclasses.fields(settings)]


def test_a_taken_port_says_which_flag_chooses_another():
    assert str(PortTaken("grpc_port", "127.0.0.1", 8001, "address in use")) == (
        "grpc_port 8001 on 127.0.0.1 cannot be bound (address in use); choose another with --grpc-port"
    )
