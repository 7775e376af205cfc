"""Make's other targets for deploying; and what all of them do without a setting, a tool or a confirmation."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess

import pytest

from infra.deploy.errors import UsageError
from infra.deploy.images import LOCK, Images
from infra.deploy.settings import ALLOWED
from infra.deploy.shell import Shell
from infra.deploy.variables import check_variables
from tests.infra.cloud import IMAGE, NEW, OLD, READY, REGISTRY, ROOT, TOOLS, Cloud, Revisions, answering, exposition
from tests.infra.sequences import BACK, DEPLOY, FOLLOWERS, PUSH, SEQUENCES, find, send_back
from tests.instance_process import WAIT_S_MAX

TARGETS = (*SEQUENCES, "deploy", "rollback")


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path, "http://127.0.0.1:9")


@pytest.mark.parametrize("target", SEQUENCES)
def test_a_target_runs_these_commands_and_no_other(cloud, target):
    done = cloud.make(target, CONFIRM="yes")
    assert done.status == 0, done.err
    assert cloud.calls() == SEQUENCES[target]


@pytest.mark.parametrize(
    ("target", "failing"),
    [
        *((target, command) for target in ("infra-up", "infra-down") for command in SEQUENCES[target]),
        ("image", SEQUENCES["image"][3]),
        *(("push", command) for command in PUSH),
        ("precompile", SEQUENCES["precompile"][-1]),
    ],
)
def test_what_fails_is_the_last_that_was_run(cloud, target, failing):
    cloud.change(failing=[failing])
    done = cloud.make(target, CONFIRM="yes")
    assert done.status == 2
    assert cloud.calls() == SEQUENCES[target][: SEQUENCES[target].index(failing) + 1]
    (line,) = [line for line in done.told() if not line.startswith(("gcloud: ", "terraform: ", "podman: "))]
    assert line.startswith(f"{target}: ")
    assert line.endswith("ended with status 3")


def test_the_token_for_the_registry_is_handed_over_and_shown_nowhere(cloud):
    done = cloud.make("push")
    assert cloud.inputs() == ["access-token"]
    assert "access-token" not in done.err.replace("print-access-token", "")
    assert done.out == ""


@pytest.mark.skipif("WARMPOOL_CI" not in os.environ and not shutil.which("jq"), reason="there is no jq")
@pytest.mark.parametrize("target", TARGETS)
def test_a_dry_run_runs_nothing_and_what_it_prints_does_the_same(tmp_path, target):
    revisions = Revisions()
    revisions.ready = {"pool-00002": READY}
    revisions.metrics = dict.fromkeys(("pool-00001", "pool-00002"), exposition(200, 0))
    with answering(revisions) as url:
        for folder in ("real", "dry"):
            (tmp_path / folder).mkdir()
        real, dry = Cloud(tmp_path / "real", url), Cloud(tmp_path / "dry", url)
        for cloud in (real, dry):
            cloud.change(tags={"previous": "pool-00000"}, functions={"warmpool-dev-embed": ["pool-00000"]})
        script = dry.make(target, DRY_RUN="1")
        assert (script.status, script.err) == (0, "")
        assert dry.calls() == []
        assert real.make(target, CONFIRM="yes", ARGS="--canary-s 0" if target == "deploy" else "").status == 0
    run = subprocess.run(
        [tmp_path / "dry" / "sh"], input=script.out, text=True, cwd=ROOT, env={"PATH": str(dry.folder)},
        capture_output=True, timeout=WAIT_S_MAX, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    asked = ("curl ", "sleep ", "git status ", "gcloud run revisions describe ")  # a script looks at nothing by itself
    done, scripted = ([call for call in cloud.calls() if not call.startswith(asked)] for cloud in (real, dry))
    assert sorted(scripted) == sorted(done)
    assert dry.world["shares"] == real.world["shares"]
    assert dry.world["tags"] == real.world["tags"]
    assert dry.world["serving"] == real.world["serving"]


@pytest.mark.skipif("WARMPOOL_CI" not in os.environ and not shutil.which("jq"), reason="there is no jq")
def test_the_script_of_a_deployment_without_functions_ends_well_too(cloud):
    cloud.change(outputs=cloud.world["outputs"] | {"function_names": {}}, tags={"previous": "pool-00000"})
    script = cloud.make("deploy", DRY_RUN="1").out
    run = subprocess.run(
        [cloud.folder / "sh"], input=script, text=True, cwd=ROOT, env={"PATH": str(cloud.folder)},
        capture_output=True, timeout=WAIT_S_MAX, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert cloud.calls()[-1] == FOLLOWERS[-1]


@pytest.mark.skipif("WARMPOOL_CI" not in os.environ and not shutil.which("jq"), reason="there is no jq")
@pytest.mark.parametrize("previous", ["pool-00000", "pool-00002"])
def test_the_script_of_a_rollback_has_the_order_of_the_real_one_whichever_way_it_goes(cloud, previous):
    ours = {"functions": {"warmpool-dev-embed": [previous, previous]}, "unready": ["warmpool-dev-embed-00002"]}
    world = cloud.world | ours | {"tags": {"previous": previous}}
    world["outputs"]["function_names"] = {"embed": "warmpool-dev-embed"}
    cloud.world = world
    script = cloud.make("rollback", DRY_RUN="1").out
    assert cloud.make("rollback").status == 0
    real, after = cloud.calls(), cloud.world
    cloud.world = world
    subprocess.run(
        [cloud.folder / "sh"], input=script, text=True, cwd=ROOT, env={"PATH": str(cloud.folder)}, timeout=WAIT_S_MAX,
        check=True,
    )  # fmt: skip
    assert cloud.calls()[len(real) :] == real
    assert cloud.world == after
    assert after["serving"] == {"warmpool-dev-embed": "warmpool-dev-embed-00001=100"}


@pytest.mark.parametrize(
    ("missing", "target", "word"),
    [
        ("terraform", "infra-plan", "developer.hashicorp.com"),
        ("gcloud", "deploy", "cloud.google.com/sdk"),
        ("gcloud", "rollback", "cloud.google.com/sdk"),
        ("gcloud", "push", "cloud.google.com/sdk"),
        ("podman", "image", "podman.io"),
        ("git", "image", "git-scm.com"),
    ],
)
def test_a_missing_tool_is_one_line_that_says_how_to_get_it(tmp_path, missing, target, word):
    cloud = Cloud(tmp_path, "http://127.0.0.1:9", tuple(tool for tool in TOOLS if tool != missing))
    done = cloud.make(target)
    assert done.status == 2
    (line,) = done.told()
    assert line.startswith(f"{target}: {missing}")
    assert "is not on the PATH" in line
    assert word in line
    assert [call for call in cloud.calls() if not call.startswith("git ")] == []


@pytest.mark.parametrize(("tools", "ci", "checked"), [((), "", False), ((), "1", True), (("terraform",), "", True)])
def test_what_is_written_for_terraform_is_checked_where_there_is_one_and_in_ci_always(tmp_path, tools, ci, checked):
    cloud = Cloud(tmp_path, "http://127.0.0.1:9", tools)
    done = subprocess.run(
        [cloud.folder / "make", "--dry-run", "check", f"WARMPOOL_CI={ci}"], cwd=ROOT, env={"PATH": str(cloud.folder)},
        capture_output=True, text=True, timeout=WAIT_S_MAX, check=True,
    )  # fmt: skip
    assert ("infra/terraform/check.sh" in done.stdout) == checked
    assert ("infra/terraform was NOT checked" in done.stdout) != checked


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "settings.env is not there: cp "),
        ("REGION=europe-west4\nENV=dev\n", "PROJECT is not set in "),
        ("PROJECT=my-project-1\nREGION=\nENV=dev\n", "REGION is not set in "),
        ("PROJECT=my-project-1\nREGION=europe-west4\n# ENV=dev\n", "ENV is not set in "),
        ("PROJECT=My Project\nREGION=europe-west4\nENV=dev\n", "PROJECT in "),
        ("PROJECT=my-project-1\nREGION=europe\nENV=dev\n", "is 'europe', allowed: a region of Google Cloud"),
        ("PROJECT=my-project-1\nREGION=europe-wst4\nENV=dev\n", "is 'europe-wst4', allowed: a region of Google Cloud"),
        ("PROJECT=my-project-1\nREGION=europe-west4\nENV=d\xe9v\n", "is not text in UTF-8"),
        ("PROJECT=my-project-1\nREGION=europe-west4\nENV=stage\n", "is 'stage', allowed: dev or prod"),
        ("PROJECT=my-project-1\nREGIN=europe-west4\nENV=dev\n", "line 2 is 'REGIN=europe-west4', allowed: PROJECT="),
        ("PROJECT=my-project-1\nENV=dev\nENV=prod\n", "line 3 sets ENV again"),
    ],
)
def test_a_setting_that_is_missing_or_wrong_is_one_line_that_names_it(cloud, text, words):
    cloud.settings.unlink()
    if text is not None:
        cloud.settings.write_text(text, "latin-1")
    done = cloud.make("deploy")
    assert done.status == 2
    (line,) = done.told()
    assert line.startswith("deploy: ")
    assert words in line
    assert cloud.calls() == []


VARIABLES = 'variable "callers" {\n  default = []\n}\n\nvariable "log-days" {}\nvariable "region" {}\n'
RIGHT = """# callrs = 1
region = "x # callrs = 1"  // callrs = 2
callers = [
  "user:a@example.com", # {
]
/* callrs = 3
callrs = 4 */
log-days = {
traces = 7
more = [{
all = 7
}]
}
region = <<-TEXT
callrs = "{ [
  TEXT
"""


def test_a_variable_that_a_tfvars_file_misspells_is_one_line_that_names_it(tmp_path):
    """Terraform itself goes on, with a warning among all that it plans."""
    (tmp_path / "variables.tf").write_text(VARIABLES)
    given = tmp_path / "terraform.tfvars"
    given.write_text(RIGHT)
    (tmp_path / "terraform.tfvars.bak").write_text("callrs = 1\n")
    check_variables(tmp_path)
    given.rename(tmp_path / "mine.auto.tfvars")
    given.write_text(f'{RIGHT}callrs = ["user:a@example.com"]\n')
    with pytest.raises(UsageError, match=rf"^{given} sets 'callrs', allowed: callers, log-days, region$"):
        check_variables(tmp_path)
    given.write_bytes(b'region = "\xff"\n')
    with pytest.raises(UsageError, match=rf"^{given} is no UTF-8: invalid start byte at byte 10$"):
        check_variables(tmp_path)
    given.write_text("log-dys={\nall=7\n}\n")
    with pytest.raises(UsageError, match=rf"^{given} sets 'log-dys', allowed: "):
        check_variables(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"log-days": {"all": 7}}', ""),
        ('{"//": "why", "region": "x"}', ""),
        ('{"log-days": {"all": 7}, "callrs": []}', " sets 'callrs', allowed: callers, log-days, region"),
        ('{"region": "x"', " is no JSON: "),
        ('["region"]', " holds list, allowed: an object with a value for each variable"),
    ],
)
def test_a_tfvars_file_may_be_json(tmp_path, text, words):
    (tmp_path / "variables.tf").write_text(VARIABLES)
    given = tmp_path / "terraform.tfvars.json"
    given.write_text(text)
    if not words:
        check_variables(tmp_path)
        return
    with pytest.raises(UsageError) as raised:
        check_variables(tmp_path)
    assert f"{given}{words}" in str(raised.value)


def test_the_example_of_the_settings_needs_but_a_project_and_a_region_however_they_are_written(cloud):
    example = (ROOT / "infra/settings.env.example").read_text()
    filled = example.replace("PROJECT=\n", 'PROJECT = "my-project-1"\n')
    filled = filled.replace("REGION=\n", "REGION='europe-west4' # near\n")
    cloud.settings = cloud.folder / "mine, for dev.env"
    cloud.settings.write_text(filled, "utf-8-sig", newline="\r\n")  # as some editors do
    assert cloud.make("infra-plan").status == 0
    assert cloud.calls() == SEQUENCES["infra-plan"]


@pytest.mark.parametrize("target", ["infra-up", "infra-down"])
def test_nothing_is_applied_unless_somebody_confirms_it(cloud, target):
    for confirm in ("", "no"):
        done = cloud.make(target, CONFIRM=confirm)
        assert done.status == 2
        assert "CONFIRM" in done.err
    assert not any(" apply " in call for call in cloud.calls())


@pytest.mark.parametrize(("typed", "applied"), [("dev", True), ("prod", False), ("yes", False)])
def test_at_a_terminal_the_environments_name_is_asked_for(cloud, typed, applied):
    words, environment = cloud.command("infra-down")
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{typed}\n".encode())
        done = subprocess.run(
            [str(cloud.folder / "make"), *words[1:]], cwd=ROOT, env=environment, stdin=theirs, capture_output=True,
            text=True, timeout=WAIT_S_MAX, check=False,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert "Type dev to go on" in done.stderr
    assert (SEQUENCES["infra-down"][-1] in cloud.calls()) == applied == (done.returncode == 0)


def test_what_is_protected_is_not_destroyed_even_if_somebody_confirms_it(cloud):
    cloud.settings.write_text("PROJECT=my-project-1\nREGION=europe-west4\nENV=prod\n")
    cloud.change(protected=True)
    done = cloud.make("infra-down", CONFIRM="yes")
    assert done.status == 2
    (line,) = done.told()
    assert "deletion protection of prod is on (google_cloud_run_v2_service.pool)" in line
    assert cloud.calls() == ["terraform -chdir=infra/terraform/examples/prod show -json"]


@pytest.mark.parametrize("target", ["image", "push", "deploy"])
def test_a_checkout_with_changes_is_not_deployed_unless_it_is_given_a_name(cloud, target):
    cloud.change(changed=" M warmpool/lane.py")
    done = cloud.make(target)
    assert done.status == 2
    assert "changes that are in no commit: commit them, or give TAG=name" in done.err
    assert not any(call.startswith(("podman", "gcloud")) for call in cloud.calls())
    done = cloud.make("image", TAG="try-1", VARIANT="cuda")
    assert done.status == 0
    assert "--build-arg=VARIANT=cuda --tag=localhost/warmpool/instance:try-1 ." in cloud.calls()[-2]


def test_what_deploying_leaves_in_the_checkout_is_no_change_to_commit():
    """Or the next `make image` would be refused, and a key could be committed."""
    example = "infra/terraform/examples/dev"
    left = ["infra/settings.env", "keys/publisher.pem", ".stack/log", *(
        f"{example}/{name}" for name in (".terraform/x", ".terraform.lock.hcl", "warmpool.tfplan", "terraform.tfstate")
    )]  # fmt: skip
    done = subprocess.run(["git", "check-ignore", *left], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == left


def test_the_settings_and_terraform_allow_the_same():
    written = (ROOT / "infra/terraform/variables.tf").read_text()
    for name in ("PROJECT", "REGION"):
        assert f'regex("^{ALLOWED[name][0]}$", var.{name.lower()})' in written


@pytest.mark.parametrize("env", ["dev", "prod"])
def test_terraform_takes_what_it_is_given_and_has_the_outputs_that_are_asked_for(cloud, env):
    written = {
        name: (ROOT / f"infra/terraform/examples/{env}/{name}.tf").read_text() for name in ("outputs", "variables")
    }
    assert set(cloud.world["outputs"]) <= set(re.findall(r'^output "(\w+)"', written["outputs"], re.MULTILINE))
    needed = re.findall(r'^variable "(\w+)" \{\n(?:  (?!default)[^\n]*\n)*\}', written["variables"], re.MULTILINE)
    assert set(needed) == {"project", "region"}


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        ("git@git.example:team/warmpool.git", "git@git.example:team/warmpool.git"),
        ("ssh://git@git.example/warmpool.git", "ssh://git.example/warmpool.git"),
        ("https://a-secret@git.example/a@b.git", "https://git.example/a@b.git"),
        ("https://me:p@ss@git.example/w.git", "https://git.example/w.git"),
        ("/srv/warmpool.git", "/srv/warmpool.git"),
        ("", "unknown"),
    ],
)
def test_an_image_says_where_it_comes_from_and_no_secret(cloud, origin, told):
    cloud.change(origin=origin)
    done = cloud.make("image", TAG="try-1", BASE="debian@sha256:abc")
    assert done.status == 0, done.err
    named = f" --build-arg=SOURCE={told} --build-arg=BASE=debian@sha256:abc "
    assert [named in call for call in cloud.calls()] == [False, True, True, True]
    script = cloud.make("image", TAG="try-1", BASE="debian@sha256:abc", DRY_RUN="1").out
    real = cloud.calls()
    environment = {"PATH": str(cloud.folder)}
    subprocess.run([cloud.folder / "sh"], input=script, text=True, cwd=ROOT, env=environment, check=True, timeout=60)
    assert cloud.calls()[len(real) :] == real


def test_where_git_says_nothing_of_an_origin_it_is_unknown(cloud):
    cloud.change(failing=["git config"])
    done = cloud.make("image")
    assert done.status == 0, done.err
    assert all(" --build-arg=SOURCE=unknown " in call for call in cloud.calls() if call.startswith("podman"))


def test_a_folder_of_functions_that_is_named_is_built_with_the_lock_that_it_has(cloud, tmp_path):
    done = cloud.make("image", FUNCTIONS="examples/options")
    assert done.status == 0, done.err
    assert not (ROOT / "examples/options" / LOCK).exists()
    assert " --build-arg=FUNCTIONS=examples/options --tag=" in cloud.calls()[3]
    left_out = "which no image is built with: add !tests/infra to .containerignore"
    allowed = "allowed: a folder of this checkout, without blanks in its name"
    wrong = dict.fromkeys(("none", str(tmp_path), f"../{ROOT.name}", "."), allowed)
    for folder, words in (wrong | {"tests/infra": left_out}).items():
        done = cloud.make("image", FUNCTIONS=folder)
        assert done.status == 2
        assert done.told() == [f"image: FUNCTIONS is '{folder}', {words}"]
    assert (ROOT / ".dockerignore").samefile(ROOT / ".containerignore")


def test_a_folder_of_functions_with_a_blank_in_its_name_is_refused_since_no_image_can_be_told_of_it(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of mine").mkdir()
    (tmp_path / ".containerignore").write_text("*\n!of mine\n!of\n")
    with pytest.raises(UsageError, match=r"^FUNCTIONS is 'of mine', allowed: .* without blanks in its name$"):
        Images(Shell(dry=True), "tag", "cpu").build(functions="of mine")


@pytest.mark.parametrize("engine", ["docker", "buildah"])
def test_another_engine_does_as_well(tmp_path, engine):
    cloud = Cloud(tmp_path, "http://127.0.0.1:9", ("git", engine))
    assert cloud.make("image").status == 0
    assert cloud.calls() == [command.replace("podman ", f"{engine} ") for command in SEQUENCES["image"]]


def test_an_image_that_was_not_pushed_is_told_with_what_to_do(cloud):
    cloud.change(digest="")
    done = cloud.make("precompile")
    assert done.status == 2
    assert f"{REGISTRY}/publisher:0123456789ab is not in the registry: run make image push first" in done.err


def test_an_output_that_is_not_there_yet_is_told_with_what_to_do(cloud):
    cloud.change(outputs={})
    done = cloud.make("rollback")
    assert done.status == 2
    assert "terraform has no output 'pool_service'" in done.err
    assert "run make infra-up first" in done.err


def test_the_status_says_who_has_the_requests(cloud):
    images = {"pool-00001": f"{IMAGE}@{OLD}", "pool-00002": f"{IMAGE}@{NEW}"}
    cloud.change(images=images, shares={"pool-00001": 90, "pool-00002": 10}, tags={"canary": "pool-00002"})
    cloud.change(
        functions={"warmpool-dev-embed": ["pool-00001", "pool-00002"]},
        serving={"warmpool-dev-embed": "warmpool-dev-embed-00002=100"},
    )
    shown = cloud.make("status").out.splitlines()
    assert shown == [
        "dev in europe-west4 of my-project-1, store gs://my-bucket",
        "pool warmpool-dev-pool at https://pool.example",
        f"   90 % pool-00001, ready: True, {IMAGE}@{OLD}",
        f"   10 % pool-00002 [canary], ready: True, {IMAGE}@{NEW}",
        "function warmpool-dev-digits at https://warmpool-dev-digits.example, ready: True",
        "  100 % warmpool-dev-digits-00001",
        "function warmpool-dev-embed at https://warmpool-dev-embed.example, ready: True",
        "  100 % warmpool-dev-embed-00002",
        "publish job warmpool-dev-publish: publish-x1, completed: True",
    ]
    document = json.loads(cloud.make("status", ARGS="--json").out)
    assert [(one["revision"], one["percent"]) for one in document["pool"]["revisions"]] == [
        ("pool-00001", 90),
        ("pool-00002", 10),
    ]
    assert document["functions"][1] == {
        "name": "warmpool-dev-embed",
        "url": "https://warmpool-dev-embed.example",
        "revisions": [{"revision": "warmpool-dev-embed-00002", "percent": 100}],
        "ready": "True",
    }
    assert document["publish_job"]["last"] == {"name": "publish-x1", "completed": "True"}


def test_of_a_function_that_is_not_made_yet_the_status_says_so(cloud):
    cloud.change(unmade=["warmpool-dev-embed"], unready=["warmpool-dev-digits-00001"])
    shown = cloud.make("status").out.splitlines()
    assert "function warmpool-dev-embed is not there, ready: Unknown" in shown
    assert "function warmpool-dev-digits at https://warmpool-dev-digits.example, ready: False ()" in shown


def test_images_are_built_where_nobody_said_what_is_deployed_to(cloud):
    cloud.settings.unlink()
    assert cloud.make("image").status == 0
    assert cloud.calls() == SEQUENCES["image"]


@pytest.mark.skipif(not shutil.which("gcloud"), reason="there is no gcloud whose flags could be compared")
def test_gcloud_itself_knows_every_command_and_flag(tmp_path):
    """All commands in one file, since gcloud takes seconds to start; it reads them and runs none."""
    ran = [*(command for sequence in SEQUENCES.values() for command in sequence), *DEPLOY, BACK]
    ran += [find("embed", "pool-00001"), send_back("embed", "00001")]
    commands = sorted({command for command in ran if command.startswith("gcloud ")})
    file = tmp_path / "commands.json"
    file.write_text(json.dumps([{"command_string": command} for command in commands]))
    checked = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={file}"],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "CLOUDSDK_CONFIG": str(tmp_path)},
    )  # fmt: skip
    results = json.loads(checked.stdout.splitlines()[0])
    assert {one["command_string"]: one["error_message"] for one in results if not one["success"]} == {}
    assert len(results) == len(commands) > 10
