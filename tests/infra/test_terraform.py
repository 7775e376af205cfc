"""What Terraform would make of the two examples, who may write what by that, and what it says of mistakes.

Nothing is asked of a cloud.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cache import opening
from cache.audit import Audit
from cache.errors import StoreUnavailable
from cache.failures import Failure, forget, record
from cache.fingerprint import Fingerprint
from cache.layout import FOLDERS
from cache.local_store import LocalStore
from cache.records import decoded
from cache.sightings import mark
from cache.signed_store import SignedStore
from cache.verification import set_aside
from cache.wanted import want
from functions.settings import Settings as FunctionSettings
from tests.infra import planned
from tests.infra.granted import GrantedStore, Grants, as_rows
from tests.infra.planned import ROOT, WRITTEN, Copy, copied
from tests.infra.routed import buckets_of, logged
from tests.infra.typos import Misspelt
from tests.warmpool.publishing.toy import Heard, Toy
from warmpool import cli
from warmpool.manifest import Manifest, RolloutSpec, Target, manifest_path, serving_path
from warmpool.publishing.from_store import make_from_store
from warmpool.publishing.machines import Children, Limits
from warmpool.rollout.record import Event, Rollout, add_event, record_path
from warmpool.settings import Settings, read_settings
from warmpool.tracing import Span, Trace, Traces

WHOLE_PROJECT = re.compile(r"google_(project|folder|organization)_iam_(member|binding|policy|audit_config)")
ENCRYPTED: dict[str, tuple[str | int, ...]] = {
    "google_storage_bucket": ("encryption", 0, "default_kms_key_name"),
    "google_pubsub_topic": ("kms_key_name",),
    "google_artifact_registry_repository": ("kms_key_name",),
    "google_secret_manager_secret": (
        *("replication", 0, "user_managed", 0, "replicas", 0),
        *("customer_managed_encryption", 0, "kms_key_name"),
    ),
    "google_logging_project_bucket_config": ("cmek_settings", 0, "kms_key_name"),
    "google_cloud_run_v2_service": ("template", 0, "encryption_key"),
    "google_cloud_run_v2_job": ("template", 0, "template", 0, "encryption_key"),
}
SERVICES = {
    "artifact_registry": "artifactregistry",
    "billing": "billingbudgets",
    "cloud_run": "run",
    "cloud_scheduler": "cloudscheduler",
    "compute": "compute",
    "dns": "dns",
    "kms": "cloudkms",
    "logging": "logging",
    "monitoring": "monitoring",
    "project_iam_custom_role": "iam",
    "pubsub": "pubsub",
    "secret_manager": "secretmanager",
    "service_account": "iam",
    "storage": "storage",
}
CLOUD_RUN_BODY_BYTES_MAX = 32 << 20  # over HTTP/1
RESOURCE = re.compile(r'^resource "(\w+)" "(\w+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
PATHS = {
    "manifest": "models/embed/1/manifest.json",
    "target": f"models/embed/1/targets/{'a' * 64}.json",
    "serving.json": "models/embed/serving.json",
} | {f"{name}/": f"{name}/{'a' * 64}" for name in FOLDERS if name != "models"}

pytestmark = pytest.mark.skipif(
    "WARMPOOL_CI" not in os.environ and not shutil.which("terraform"), reason="terraform is not on the PATH"
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return copied(tmp_path_factory.mktemp("terraform") / "copy")


@pytest.fixture(scope="module")
def told(copy: Copy) -> list[dict[str, Any]]:
    """All that `terraform test` says of the runs above."""
    return [json.loads(line) for line in copy.terraform("test", "-json", "-verbose").stdout.splitlines()]


@pytest.fixture(scope="module")
def plans(told: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What would be made, by example."""
    found = {line["@testrun"]: line["test_plan"] for line in told if line["type"] == "test_plan"}
    return {
        name: [
            one | {"after": one["change"]["after"]}
            for one in found[name]["resource_changes"]
            if one["mode"] == "managed"
        ]
        for name in ("prod", "dev")
    }


def of_type(plan: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """What is planned of a kind of resource, by name."""
    return {one["after"]["name"]: one["after"] for one in plan if one["type"] == kind}


def texts_in(content: object) -> Iterator[str]:
    """Whatever texts are somewhere in JSON."""
    for one in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from texts_in(one)
    if isinstance(content, str):
        yield content


@pytest.mark.parametrize("example", ["prod", "dev"])
def test_nobody_gets_a_role_on_the_whole_project_and_everybody_gets_none(
    plans: dict[str, list[dict[str, Any]]], example: str
) -> None:
    plan = plans[example]
    assert [one["address"] for one in plan if WHOLE_PROJECT.fullmatch(one["type"])] == []
    everybody = {"allUsers", "allAuthenticatedUsers"}
    assert [one["address"] for one in plan if everybody.intersection(texts_in(one["after"]))] == []
    kinds = {one["type"] for one in plan if re.search("_iam_|_acl|access_control|_key$", one["type"])}
    assert {
        kind for kind in kinds if not kind.endswith("_iam_member")
    } == {  # no list, no key file: nothing else grants
        "google_project_iam_custom_role",
        "google_kms_crypto_key",
    }
    assert len([one for one in plan if one["type"].endswith("_iam_member")]) > 40


def test_an_account_is_granted_what_it_needs_and_a_function_the_pool_alone(
    plans: dict[str, list[dict[str, Any]]],
) -> None:
    granted: dict[str, set[str]] = {}
    for one in plans["prod"]:
        found = re.fullmatch(r"serviceAccount:warmpool-prod-(\w+)@some-project\..*", one["after"].get("member") or "")
        if found and "_iam_" in one["type"]:
            kind = one["type"].removeprefix("google_").removesuffix("_iam_member")
            granted.setdefault(found[1], set()).add(f"{kind}: {one['after']['role'].rpartition('/')[2]}")
    read = {"secret_manager_secret: secretmanager.secretAccessor", "storage_bucket: storage.objectViewer"}
    create, change, remove = (
        f"storage_bucket: {role}" for role in ("storage.objectCreator", "storage.objectUser", "warmpool_prod_remover")
    )  # on which objects is in the table
    assert granted == {
        "function": {"cloud_run_v2_service: run.invoker"},
        "notifier": {"cloud_run_v2_service: run.invoker"},
        "scheduler": {"cloud_run_v2_job: run.invoker"},
        "pool": {*read, create, change, remove},
        "publisher": {*read, change, remove},
        "care": {*read, create, remove},
    }
    called = {
        one["after"]["name"]
        for one in plans["prod"]
        if one["type"] == "google_cloud_run_v2_service_iam_member" and "-function@" in one["after"]["member"]
    }
    assert called == {"warmpool-prod-pool"}


@pytest.mark.parametrize("example", ["prod", "dev"])
def test_nobody_comes_in_unasked_and_all_that_goes_out_goes_through_the_network(
    plans: dict[str, list[dict[str, Any]]], example: str
) -> None:
    services = of_type(plans[example], "google_cloud_run_v2_service")
    jobs = of_type(plans[example], "google_cloud_run_v2_job")
    assert services.pop(f"warmpool-{example}-pool")["ingress"] == "INGRESS_TRAFFIC_INTERNAL_ONLY"
    outside = "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER" if example == "prod" else "INGRESS_TRAFFIC_ALL"
    assert [service["ingress"] for service in services.values()] == [outside] * 3
    services = of_type(plans[example], "google_cloud_run_v2_service")
    assert [service["invoker_iam_disabled"] for service in services.values()] == [None] * 4
    templates = {name: one["template"][0] for name, one in services.items()}
    templates |= {name: job["template"][0]["template"][0] for name, job in jobs.items()}
    assert [template["vpc_access"][0]["egress"] for template in templates.values()] == ["ALL_TRAFFIC"] * 7
    runs_as = dict.fromkeys(("embed", "digits", "options"), "function") | {"pool": "pool", "publish": "publisher"}
    assert {name: template["service_account"] for name, template in templates.items()} == {
        f"warmpool-{example}-{name}": f"warmpool-{example}-{account}@some-project.iam.gserviceaccount.com"
        for name, account in (runs_as | {"verify": "care", "gc": "care"}).items()
    }
    walls = of_type(plans[example], "google_compute_firewall").values()
    assert {wall["direction"] for wall in walls} == {"EGRESS"}


@pytest.mark.parametrize("example", ["prod", "dev"])
def test_spans_and_what_was_done_to_the_store_get_into_log_buckets_of_their_own_without_any_role(
    plans: dict[str, list[dict[str, Any]]], example: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is written is what instances and functions write; who writes to standard output needs no role."""
    kind = "google_cloud_run_v2_service"
    for name, service in of_type(plans[example], kind).items():
        told = environment_of(service["template"][0])
        wanted = {"WARMPOOL_OTLP_ENDPOINT": "-"} if name.endswith("-pool") else {"OTEL_TRACES_EXPORTER": "console"}
        assert wanted.items() <= told.items()
        assert name.endswith("-pool") or 0 < float(told["OTEL_TRACES_SAMPLER_ARG"]) <= 1
    traces = Traces(1)
    traces.record(
        "a" * 32, Trace(trace_id="", spans=[Span(name="x", span_id="b" * 16, parent_id="", start_ns=1, end_ns=2)])
    )
    traces.end_export("-", "warmpool", 60.0)
    Audit("-", "ada").record("load", path="executables/abc")
    span, audit = capfd.readouterr().out.splitlines()
    lines = {span: ["traces"], audit: ["_Default", "all", "audit"], "listening": ["_Default", "all"]}
    for line, buckets in lines.items():
        for labels in ({"service_name": f"warmpool-{example}-pool"}, {"job_name": f"warmpool-{example}-gc"}):
            assert buckets_of(plans[example], logged(line, **labels)) == buckets
        assert buckets_of(plans[example], logged(line, service_name="warmpool-other-pool")) == ["_Default"]
    kept = {
        one["after"]["bucket_id"]: one["after"]["retention_days"]
        for one in plans[example]
        if one["type"] == "google_logging_project_bucket_config"
    }
    days = (30, 400, 30) if example == "prod" else (7, 30, 7)
    assert kept == {f"warmpool-{example}-{name}": n for name, n in zip(("all", "audit", "traces"), days, strict=True)}


@pytest.mark.parametrize("example", ["prod", "dev"])
def test_the_bucket_is_private_and_all_that_is_kept_is_encrypted_with_keys_of_ours(
    plans: dict[str, list[dict[str, Any]]], example: str
) -> None:
    (bucket,) = of_type(plans[example], "google_storage_bucket").values()
    assert bucket["public_access_prevention"] == "enforced"
    assert bucket["uniform_bucket_level_access"] is True
    kept = {one["address"]: one for one in plans[example] if one["type"] in ENCRYPTED}
    assert (
        len(kept) == 16
    )  # a bucket, a topic, a repository, three secrets, three log buckets, four services, three jobs
    for address, one in kept.items():  # which key is known once it is there
        unknown: Any = one["change"]["after_unknown"]
        for step in ENCRYPTED[one["type"]]:
            unknown = unknown[step]
        assert unknown is True, address


def test_the_services_of_google_that_are_used_are_turned_on_and_no_others(
    plans: dict[str, list[dict[str, Any]]],
) -> None:
    on = {one["after"]["service"].removesuffix(".googleapis.com") for one in plans["prod"] if "service" in one["after"]}
    kinds = {one["type"].removeprefix("google_") for one in plans["prod"]} - {"project_service"}
    used = {next(of for start, of in SERVICES.items() if kind.startswith(start)) for kind in kinds}
    # A project's number is read, deployers act as an account, and an event's trigger may be asked for.
    assert on == used | {"cloudresourcemanager", "iamcredentials", "eventarc"}


def test_what_gcloud_changes_in_a_deployment_is_no_change_for_the_next_plan() -> None:
    """Or each `make infra-up` would make a revision that nobody asked for."""
    found = 0
    for file in (WRITTEN / "modules").rglob("main.tf"):
        for kind, _, text in RESOURCE.findall(file.read_text()):
            if kind not in {"google_cloud_run_v2_service", "google_cloud_run_v2_job"}:
                continue
            (ignored,) = re.findall(r"ignore_changes = \[(.*?)\n?    ?\]", text, re.DOTALL)
            container = "template[0].template[0]" if kind.endswith("job") else "template[0]"
            marks = {"client", "client_version", "template[0].annotations", "template[0].labels"}
            traffic = set() if kind.endswith("job") else {"traffic", "template[0].revision"}
            assert set(re.split(r",\s*", ignored.strip().rstrip(","))) == (
                marks | traffic | {f"{container}.containers[0].image"}
            )
            found += 1
    assert found == 4


def test_the_bill_is_bounded_and_a_budget_tells(plans: dict[str, list[dict[str, Any]]]) -> None:
    for example, sizes in (("prod", (2, 10)), ("dev", (0, 2))):
        services = of_type(plans[example], "google_cloud_run_v2_service")
        scaling = services.pop(f"warmpool-{example}-pool")["template"][0]["scaling"][0]
        assert (scaling["min_instance_count"], scaling["max_instance_count"]) == sizes
        for service in services.values():
            assert service["template"][0]["scaling"][0]["max_instance_count"] == 10
    (budget,) = (one["after"] for one in plans["prod"] if one["type"] == "google_billing_budget")
    assert budget["amount"][0]["specified_amount"][0]["units"] == "1000"
    assert [rule["threshold_percent"] for rule in budget["threshold_rules"]] == [0.5, 0.9, 1, 1]


def test_in_prod_nothing_that_matters_goes_by_one_command_and_in_dev_all_does(
    plans: dict[str, list[dict[str, Any]]],
) -> None:
    for example, protected in (("prod", True), ("dev", False)):
        found = {
            one["address"]: one["after"]["deletion_protection"]
            for one in plans[example]
            if "deletion_protection" in one["after"]
        }
        assert {address for address, holds in found.items() if holds is not protected} == set()
        assert len(found) == 10  # the pool, three functions, three jobs, three secrets
        (bucket,) = of_type(plans[example], "google_storage_bucket").values()
        assert bucket["force_destroy"] is not protected


def test_the_publish_job_runs_on_the_same_kind_of_machine_as_the_pool(plans: dict[str, list[dict[str, Any]]]) -> None:
    for example in ("prod", "dev"):
        pool = of_type(plans[example], "google_cloud_run_v2_service")[f"warmpool-{example}-pool"]["template"][0]
        job = of_type(plans[example], "google_cloud_run_v2_job")[f"warmpool-{example}-publish"]["template"][0][
            "template"
        ][0]
        assert pool["containers"][0]["resources"][0]["limits"] == job["containers"][0]["resources"][0]["limits"]
        assert pool["node_selector"] == job["node_selector"]
        assert bool(pool["node_selector"]) == (example == "prod")


def test_what_a_container_is_told_is_a_setting_with_a_value_that_is_allowed(
    plans: dict[str, list[dict[str, Any]]],
) -> None:
    for example in ("prod", "dev"):
        jobs = of_type(plans[example], "google_cloud_run_v2_job").values()
        services = of_type(plans[example], "google_cloud_run_v2_service")
        pool = environment_of(services[f"warmpool-{example}-pool"]["template"][0])
        for told in (pool, *(environment_of(job["template"][0]["template"][0]) for job in jobs)):
            read = read_settings(Settings, {}, told)
            assert read.store == f"gs://some-project-warmpool-{example}"
            assert told.keys() <= {f"WARMPOOL_{field.name.upper()}" for field in fields(Settings)}
        for name in ("embed", "digits", "options"):
            told = environment_of(services[f"warmpool-{example}-{name}"]["template"][0])
            assert (ROOT / told.pop("FUNCTION_SOURCE")).is_file()
            assert told.pop("FUNCTION_TARGET") == name
            asked = FunctionSettings.from_environment(told)
            assert asked.timeout_ms_max == int(told["WARMPOOL_TIMEOUT_MS_MAX"])


@pytest.mark.parametrize("example", ["prod", "dev"])
def test_the_front_takes_what_cloud_run_gives_it_and_is_probed_where_it_answers(
    plans: dict[str, list[dict[str, Any]]], example: str
) -> None:
    template = of_type(plans[example], "google_cloud_run_v2_service")[f"warmpool-{example}-pool"]["template"][0]
    (container,) = template["containers"]
    read = read_settings(Settings, {}, environment_of(template))
    assert read.queue_rows_max >= template["max_instance_request_concurrency"] == 80
    assert read.body_bytes_max == CLOUD_RUN_BODY_BYTES_MAX <= read.queue_bytes_max
    assert read.deadline_ms <= 1000 * int(template["timeout"].removesuffix("s"))
    memory_bytes = int(container["resources"][0]["limits"]["memory"].removesuffix("Gi")) << 30
    assert read.queue_bytes_max + read.cache_bytes_max + read.compile_memory_bytes_max < 0.7 * memory_bytes
    answered = (ROOT / "warmpool/http_health.py").read_text()
    for probe in ("startup_probe", "liveness_probe"):
        assert f'("GET", "{container[probe][0]["http_get"][0]["path"]}", ' in answered


def environment_of(template: dict[str, Any]) -> dict[str, str]:
    """What a template's container is told and known when it is planned; a URL is not."""
    return {one["name"]: one["value"] for one in template["containers"][0]["env"] if one.get("value") is not None}


def test_the_table_of_who_writes_what_is_what_is_granted(plans: dict[str, list[dict[str, Any]]]) -> None:
    accounts = ("pool", "publisher", "care", "function", "scheduler", "notifier")
    rows = as_rows({who: Grants.of(plans["prod"], who) for who in accounts}, PATHS)
    assert {who for row in rows.values() for who, may in row.items() if may} == {"pool", "publisher", "care"}
    table = re.findall(r"^\| `([^`]+)` \|(.*)\|(.*)\|(.*)\|", (WRITTEN / "README.md").read_text(), re.MULTILINE)
    written = {
        what: {who: may.strip() for who, may in zip(("pool", "publisher", "care"), cells, strict=True)}
        for what, *cells in table
    }
    assert written == {what: {who: row[who] for who in ("pool", "publisher", "care")} for what, row in rows.items()}


@pytest.mark.parametrize(
    "path",
    [
        "models/embed/1/manifest.json",
        "models/targets/1/manifest.json",
        "models/embed/targets/manifest.json",
        "models/targets/serving.json",
        "models/embed/serving.json",
        "programs/abc",
        "weights/abc",
        "distrusted/abc",
        "leasesx/abc",
        "other",
    ],
)
def test_an_instance_neither_makes_nor_replaces_nor_removes_what_is_not_its_own(
    plans: dict[str, list[dict[str, Any]]], path: str
) -> None:
    for example in ("prod", "dev"):
        pool = Grants.of(plans[example], "pool")
        assert pool.may("get", path)
        assert not pool.may("create", path)
        assert not pool.may("delete", path)
        function = Grants.of(plans[example], "function")
        assert not any(function.may(permission, path) for permission in ("get", "list", "create", "delete"))


def test_what_publishing_an_instance_and_care_do_is_granted_to_each(
    plans: dict[str, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Toy(tmp_path)
    publisher, pool, care = (
        GrantedStore(toy.store, Grants.of(plans["prod"], who)) for who in ("publisher", "pool", "care")
    )

    monkeypatch.setattr(opening, "raw_store", lambda _: publisher)
    toy.publish("1")
    toy.publish("2", factor=3.0)  # uses again what is there
    assert publisher.refused == []
    stored = {"models", "programs", "weights", "executables", "answers", "leases"}
    assert {folder for permission, folder in publisher.done if permission == "create"} == stored

    monkeypatch.setattr(opening, "raw_store", lambda _: pool)
    store = opening.open_store(toy.settings)
    compile_again(store, toy.store)
    leave_word(store)
    name = next(entry.path for entry in store.entries("executables"))
    LocalStore(toy.store).put(name, b"damaged")
    assert set_aside(store, name) is not None
    assert pool.refused == []
    written = {"fingerprints", "wanted", "traffic", "rollouts", "quarantine"}
    compiled = {"executables", "models", "leases", "failures", "breakers", "answers"}
    assert {folder for permission, folder in pool.done if permission == "create"} == written | compiled
    for path in (serving_path("toy"), manifest_path("toy", "2")):
        with pytest.raises(StoreUnavailable, match="403"):
            store.put(path, store.get(path))
    assert pool.refused == ["create models/toy/serving.json", "create models/toy/2/manifest.json"]

    monkeypatch.setattr(opening, "raw_store", lambda _: care)
    damage_and_age(toy.store)
    flags = ("--store", str(toy.store), "--trusted-keys", str(toy.folder / "key.pub"))
    assert cli.main(["cache", "verify", *flags]) == 1
    assert cli.main(["cache", "gc", *flags, "--grace-hours", "0"]) == 0
    assert care.refused == []
    assert {folder for permission, folder in care.done if permission == "create"} == {"quarantine", "wanted"}
    removed = {folder for permission, folder in care.done if permission == "delete"}
    assert removed >= {"weights", "failures", "traffic", "programs"}


def compile_again(store: SignedStore, folder: Path) -> None:
    """What an instance does whose kind of machine lacks all executables of a version."""
    bare = LocalStore(folder)
    (target,) = (entry.path for entry in bare.entries("models/toy/2/targets"))
    for path in [entry.path for entry in bare.entries("executables")]:
        bare.delete(path)
    fingerprint = Fingerprint(decoded(store.get(target), Target).fingerprint)
    manifest = decoded(store.get(manifest_path("toy", "2")), Manifest)
    with Children(Limits()) as children:
        (machine,) = children.machines("cpu")
        assert machine.fingerprint.digest == fingerprint.digest
        made = make_from_store(store, manifest, machine, children, Heard(), why="it was lost")
        assert made.compiled > 0
    mark(store, fingerprint)


def leave_word(store: SignedStore) -> None:
    """What instances tell each other, each of it twice, so that something is there to be replaced."""
    spec = RolloutSpec(started_s=1.0)
    rollout = Rollout(model="toy", stable="1", canary="2")
    failure = Failure.now(key="abc", what="it", reason="so", fingerprint="def", program="012")
    for _ in range(2):
        want(store, "abc", "it was lost")
        record(store, failure)
        add_event(store, record_path("toy", spec), rollout, Event(what="rollback", time_s=2.0, who="an instance"))
        store.put("traffic/toy/instance", b"{}")
    forget(store, failure)
    record(store, failure)


def damage_and_age(folder: Path) -> None:
    """What a store may be like after years: something is damaged, something needed by nobody, and all of it old."""
    bare = LocalStore(folder)
    for name in ("weights", "executables"):
        bare.put(f"{name}/{bare.names(name)[0]}", b"damaged")
    bare.put(f"programs/{'a' * 64}", b"needed by nobody")
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (1.0, 1.0))


def test_a_bad_region_gives_one_message_that_says_what_is_allowed(told: list[dict[str, Any]]) -> None:
    (said,) = (
        line["diagnostic"] for line in told if line["type"] == "diagnostic" and line.get("@testrun") == "bad_region"
    )
    assert said["summary"] == "Invalid value for variable"
    assert "region is 'europe-wst4', allowed: a region of Google Cloud" in said["detail"]


@pytest.mark.parametrize(("given", "missing"), [("region=europe-west4", "project"), ("project=some-project", "region")])
def test_a_missing_variable_gives_one_message_that_names_it(copy: Copy, given: str, missing: str) -> None:
    within = "examples/dev"
    if not (copy.folder / within / ".terraform").is_dir():
        assert copy.terraform("init", "-backend=false", "-input=false", within=within).returncode == 0
    refused = copy.terraform("plan", "-input=false", "-no-color", f"-var={given}", within=within)
    assert refused.returncode == 1
    assert refused.stderr.count("Error:") == 1
    assert f'The root module input variable "{missing}" is not set' in refused.stderr


def test_a_typo_in_any_argument_gives_one_message_that_names_it(copy: Copy, tmp_path: Path) -> None:
    folder = tmp_path / "typos"
    shutil.copytree(copy.folder, folder, symlinks=True)
    typos = Copy(folder, copy.environment)
    examples = [Path("examples/dev"), Path("examples/prod")]
    for root in examples:
        assert typos.terraform("init", "-backend=false", "-input=false", within=str(root)).returncode == 0
    files = [file for file in folder.rglob("*.tf") if ".terraform" not in file.parts]
    misspelt = Misspelt(folder, {file.relative_to(folder): file.read_text() for file in files})
    assert len(misspelt.left) > 900
    for root in (Path(), *examples):
        while any(
            file.is_relative_to(root) and (root.parts or file.parts[0] != "examples") for file, _ in misspelt.left
        ):
            written = misspelt.write()
            said = json.loads(typos.terraform("validate", "-json", "-no-tests", within=str(root)).stdout)["diagnostics"]
            for one in said:
                assert one["summary"] == "Unsupported argument"
                assert re.match(r'An argument named "\w+x" is not expected here\.', one["detail"])
            found = {written[root / one["range"]["filename"], one["range"]["start"]["line"]] for one in said}
            assert len(said) == len(found) > 0
            misspelt.left -= found
    assert misspelt.left == set()


def test_without_terraform_there_is_one_line_that_says_how_to_get_it(tmp_path: Path) -> None:
    for tool in ("dirname", "sh"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    refused = subprocess.run(
        [tmp_path / "sh", WRITTEN / "check.sh"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr == (
        "infra-check: terraform is not on the PATH; how to get it: https://developer.hashicorp.com/terraform/install\n"
    )


def test_where_no_provider_is_to_be_had_it_is_said_what_was_left_out_and_in_ci_that_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "clone"
    trivy = root / ".venv-infra" / "trivy" / "bin" / "trivy"
    trivy.parent.mkdir(parents=True)
    trivy.write_text("#!/bin/sh\n")
    trivy.chmod(0o755)
    (root / ".ci").mkdir()
    (root / ".ci" / "install.py").touch()  # it is there already
    shutil.copytree(WRITTEN, root / "infra" / "terraform", ignore=shutil.ignore_patterns(".terraform*"))
    nowhere = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HTTPS_PROXY": "http://127.0.0.1:9"}
    command = ["sh", "infra/terraform/check.sh"]
    left_out = "NOT validated, NOT tested: the registry of providers cannot be reached"
    for environment, status in ((nowhere, 0), (nowhere | {"WARMPOOL_CI": "1"}, 1)):
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == status
        (line,) = done.stderr.splitlines()
        assert left_out in line

    with (root / "infra" / "terraform" / "main.tf").open("a") as main:  # what is wrong is told all the same
        main.write('\nmodule "none" {\n  source = "./modules/none"\n}\n')
    done = subprocess.run(command, cwd=root, env=nowhere, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("infra-check: terraform init failed\n")

    monkeypatch.setattr(planned, "STAND_IN", tmp_path / "none")
    for name, text in nowhere.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("TF_CLI_CONFIG_FILE", raising=False)
    for in_ci, ends in ((False, pytest.skip.Exception), (True, pytest.fail.Exception)):
        monkeypatch.setenv("WARMPOOL_CI", "1") if in_ci else monkeypatch.delenv("WARMPOOL_CI", raising=False)
        with pytest.raises(ends, match="cannot be reached"):
            copied(tmp_path / f"copy-{in_ci}")
