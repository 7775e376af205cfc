"""`make deploy` and `make rollback`: what they do, in which order, and what becomes of the requests when it fails."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager

import pytest

from infra.deploy.__main__ import main
from infra.deploy.shell import ENDING
from tests.infra.cloud import IMAGE, NEW, OLD, READY, REGISTRY, ROOT, UNREADY, Cloud, Revisions, answering, exposition
from tests.infra.sequences import (
    ADD,
    BACK,
    DEPLOY,
    DESCRIBE,
    FOLLOWERS,
    IDENTIFY,
    LOOK,
    OUTPUTS,
    POOL,
    PRECOMPILE,
    PROMOTE,
    SHARE,
    TOKEN,
    TRIAL,
    find,
    send_back,
)  # fmt: skip
from tests.instance_process import WAIT_S_MAX, wait_until

QUICK = {"ARGS": "--canary-s 0 --every-s 0.01 --ready-s-max 0"}


@pytest.fixture(scope="module")
def answered():
    revisions = Revisions()
    with answering(revisions) as url:
        yield revisions, url


@pytest.fixture
def revisions(answered):
    """Both answer, and as well as the other."""
    found, _ = answered
    found.__init__()
    found.ready = {"pool-00001": READY, "pool-00002": READY, "pool-00003": READY}
    found.metrics = dict.fromkeys(found.ready, exposition(200, 0))
    return found


@pytest.fixture
def cloud(tmp_path, answered, revisions):
    return Cloud(tmp_path, answered[1])


def test_a_deployment_compiles_tries_and_promotes_in_this_order(cloud, revisions):
    done = cloud.make("deploy", **QUICK)
    assert (done.status, done.told()) == (0, []), done.err
    assert cloud.calls() == DEPLOY
    assert cloud.world["shares"] == {"pool-00002": 100}
    assert cloud.world["tags"] == {"previous": "pool-00001"}
    assert cloud.world["followers"] == {
        "warmpool-dev-publish": f"{REGISTRY}/publisher@{NEW}",
        "warmpool-dev-digits": f"{REGISTRY}/function@{NEW}",
        "warmpool-dev-embed": f"{REGISTRY}/function@{NEW}",
        "warmpool-dev-gc": f"{REGISTRY}/publisher@{NEW}",
    }
    asked = [path for path, _ in revisions.asked]
    assert asked == ["/pool-00002/v2/health/ready", "/pool-00001/metrics", "/pool-00002/metrics"]
    assert {token for _, token in revisions.asked} == {"Bearer identity-token"}


def test_each_command_is_shown_and_no_token_is(cloud):
    done = cloud.make("deploy", **QUICK)
    shown = [line.removeprefix("+ ").replace("'", "") for line in done.err.splitlines() if line.startswith("+ ")]
    assert shown == DEPLOY
    assert "identity-token " not in done.err.replace("print-identity-token ", "")


def test_the_pool_is_left_alone_where_the_image_has_all_requests(cloud):
    cloud.change(digest=OLD)
    done = cloud.make("deploy", **QUICK)
    assert done.status == 0
    assert "nothing to do" in done.err
    followed = [command.replace(NEW, OLD).replace("pool-00002", "pool-00001") for command in FOLLOWERS]
    assert cloud.calls() == [*IDENTIFY, *LOOK, *followed]


def test_what_infra_up_changed_is_brought_to_requests_though_the_image_is_the_same(cloud):
    """Requests are given out by the revision's name, so what Terraform makes gets none by itself."""
    cloud.change(digest=OLD, images=dict.fromkeys(("pool-00001", "pool-00002"), f"{IMAGE}@{OLD}"))
    done = cloud.make("deploy", **QUICK)
    assert done.status == 0, done.err
    assert ADD.replace(NEW, OLD) in cloud.calls()
    assert cloud.world["shares"] == {"pool-00003": 100}
    assert "nothing to do" in cloud.make("deploy", **QUICK).err


@pytest.mark.parametrize(
    ("failing", "reached", "back"),
    [
        ("instance:", IDENTIFY[:4], []),
        ("services describe", [*IDENTIFY, DESCRIBE], []),
        ("jobs update", [*IDENTIFY, *LOOK, PRECOMPILE[0]], []),
        ("jobs execute", [*IDENTIFY, *LOOK, *PRECOMPILE], []),
        ("services update warmpool", [*IDENTIFY, *LOOK, *PRECOMPILE, ADD], [BACK]),
        ("print-identity-token", [*IDENTIFY, *LOOK, *PRECOMPILE, *TRIAL[:3]], [BACK]),
        ("=pool-00002=10,", [*IDENTIFY, *LOOK, *PRECOMPILE, *TRIAL[:4]], [BACK]),
        ("=pool-00002=100", POOL, [BACK]),
    ],
)
def test_what_fails_ends_it_and_the_old_revision_keeps_the_requests(cloud, failing, reached, back):
    cloud.change(failing=[failing])
    done = cloud.make("deploy", **QUICK)
    assert done.status == 2, done.err  # make's own
    assert cloud.calls() == [*reached, *back]
    assert cloud.world["shares"] == {"pool-00001": 100}
    assert "canary" not in cloud.world["tags"]
    (line,) = [line for line in done.told() if not line.startswith("gcloud: ")]
    assert line.startswith("deploy: "), done.err


def told_why(done):
    """The last line that is ours."""
    return [line for line in done.err.splitlines() if line.startswith("deploy: ")][-1]


def test_the_message_says_which_command_failed_and_who_has_the_requests(cloud):
    cloud.change(failing=["=pool-00002=100"])
    why = told_why(cloud.make("deploy", **QUICK))
    assert "pool-00002=100" in why
    assert "ended with status 3" in why
    assert why.endswith("pool-00001 has all requests again")


def test_where_going_back_fails_too_the_message_says_so(cloud):
    cloud.change(failing=["services update-traffic"])
    done = cloud.make("deploy", **QUICK)
    assert done.status == 2
    assert "going back failed" in told_why(done)
    assert "make rollback" in told_why(done)


def test_a_function_that_does_not_start_leaves_the_pool_as_it_is(cloud):
    cloud.change(failing=["services update warmpool-dev-embed"])
    done = cloud.make("deploy", **QUICK)
    assert done.status == 2
    assert "the pool is done, but not all that follows it" in told_why(done)
    assert cloud.world["shares"] == {"pool-00002": 100}
    cloud.change(failing=[])
    assert cloud.make("deploy", **QUICK).status == 0
    assert cloud.calls()[-7:] == [DESCRIBE, LOOK[1].replace("00001", "00002"), *FOLLOWERS]


def test_a_revision_that_is_never_ready_gets_no_request(cloud, revisions):
    revisions.ready["pool-00002"] = UNREADY
    done = cloud.make("deploy", **QUICK)
    assert done.status == 2
    assert cloud.calls() == [*IDENTIFY, *LOOK, *PRECOMPILE, *TRIAL[:3], BACK]
    assert "not ready after 0 s" in told_why(done)
    assert "nothing is warm" in told_why(done)


def test_a_revision_that_is_ready_later_is_waited_for(cloud, revisions):
    answers = iter([UNREADY, (404, "not here yet"), READY])
    revisions.first = lambda path: next(answers) if path.endswith("ready") else None
    done = cloud.make("deploy", ARGS="--canary-s 0 --every-s 0.01")
    assert done.status == 0, done.err
    assert cloud.world["shares"] == {"pool-00002": 100}


@pytest.mark.parametrize(("status", "word"), [(404, "VPC networks alone"), (403, "run.invoker")])
def test_a_pool_that_cannot_be_asked_is_told_with_what_it_needs(cloud, revisions, status, word):
    revisions.ready["pool-00002"] = (status, "")
    done = cloud.make("deploy", **QUICK)
    assert done.status == 2
    assert word in told_why(done)
    assert cloud.world["shares"] == {"pool-00001": 100}
    assert cloud.calls().count(TOKEN) == (2 if status == 403 else 1)  # a token may have been too old


@pytest.mark.parametrize(
    ("canary", "word"),
    [
        (exposition(200, 20), "20 of 200 requests failed"),
        (exposition(200, 0, seconds=0.05), "90% of toy:predict take up to 0.05 s, with the old revision up to 0.01 s"),
        (exposition(99, 0), "too little was seen"),
        ("# nothing of ours\n", "no warmpool_ready"),
    ],
)
def test_a_canary_that_is_worse_or_not_seen_loses_its_requests(cloud, revisions, canary, word):
    revisions.metrics["pool-00002"] = canary
    done = cloud.make("deploy", **QUICK)
    assert done.status == 2
    assert word in told_why(done)
    assert cloud.calls() == [*IDENTIFY, *LOOK, *PRECOMPILE, *TRIAL, BACK]
    assert cloud.world["shares"] == {"pool-00001": 100}


def test_a_mistake_that_nobody_thought_of_gives_the_requests_back_too(cloud):
    cloud.change(url="http://[")  # nothing that could be parsed
    done = cloud.make("deploy", **QUICK)
    assert done.status == 2
    assert "ValueError: " in told_why(done)
    assert cloud.calls()[-1] == BACK
    assert cloud.world["shares"] == {"pool-00001": 100}


def test_a_first_revision_is_compared_with_nothing(cloud, revisions):
    cloud.change(images={"pool-00001": "us-docker.pkg.dev/cloudrun/container/hello"})
    done = cloud.make("deploy", **QUICK)
    assert done.status == 0, done.err
    assert cloud.calls() == [*IDENTIFY, *LOOK, *PRECOMPILE, *TRIAL[:3], PROMOTE, *FOLLOWERS]
    assert [path for path, _ in revisions.asked] == ["/pool-00002/v2/health/ready"]


def test_what_a_killed_deployment_left_is_gone_on_with(cloud):
    images = {"pool-00001": f"{IMAGE}@{OLD}", "pool-00002": f"{IMAGE}@{NEW}"}
    tags = {"canary": "pool-00002", "stable": "pool-00001"}
    cloud.change(images=images, shares={"pool-00001": 90, "pool-00002": 10}, tags=tags)
    done = cloud.make("deploy", **QUICK)
    assert done.status == 0, done.err
    assert ADD not in cloud.calls()
    assert cloud.calls()[-9:] == [SHARE, DESCRIBE, DESCRIBE, PROMOTE, *FOLLOWERS]
    assert cloud.world["images"] == images


def test_what_was_left_with_another_image_is_replaced(cloud):
    images = {"pool-00001": f"{IMAGE}@{OLD}", "pool-00002": f"{IMAGE}@sha256:{'c' * 64}"}
    cloud.change(images=images, shares={"pool-00001": 90, "pool-00002": 10}, tags={"canary": "pool-00002"})
    done = cloud.make("deploy", **QUICK)
    assert done.status == 0, done.err
    assert ADD in cloud.calls()
    assert cloud.world["shares"] == {"pool-00003": 100}
    assert cloud.world["tags"] == {"previous": "pool-00001"}


@contextmanager
def trial(cloud, revisions):
    """The process of a deployment whose canary is being watched, with all that it starts a group of its own."""
    words, environment = cloud.command("deploy", ARGS="--canary-s 3600")
    kept = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup, and what they start must not
    with subprocess.Popen(
        [str(cloud.folder / "make"), *words[1:]], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        signal.signal(signal.SIGHUP, kept)
        try:
            assert revisions.looked.wait(WAIT_S_MAX)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_trial_gives_the_requests_back(cloud, revisions, number):
    with trial(cloud, revisions) as process:
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=WAIT_S_MAX)
    assert "pool-00001 has all requests again" in err
    assert cloud.calls()[-1] == BACK
    assert cloud.world["shares"] == {"pool-00001": 100}


def test_a_trial_whose_terminal_goes_away_gives_the_requests_back_though_nobody_reads_it(cloud, revisions):
    with trial(cloud, revisions) as process:
        process.stderr.close()
        os.killpg(process.pid, signal.SIGHUP)
        wait_until(lambda: cloud.calls()[-1] == BACK)
        wait_until(lambda: '"shares": {"pool-00001": 100}' in (cloud.folder / "world.json").read_text())


def test_who_lets_a_deployment_outlive_the_terminal_is_obeyed(tmp_path):
    kept = {number: signal.getsignal(number) for number in ENDING}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        assert main(["status", "--settings", str(tmp_path / "none")]) == 2
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not kept[signal.SIGTERM]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_a_canary_whose_requests_somebody_took_away_is_not_promoted(cloud, revisions):
    def roll_back(path):
        if path == "/pool-00002/metrics":
            cloud.change(shares={"pool-00001": 100})

    revisions.first = roll_back
    done = cloud.make("deploy", **QUICK)
    assert done.status == 2
    assert "somebody has taken the requests of pool-00002 away" in told_why(done)
    assert cloud.world["shares"] == {"pool-00001": 100}


BACK_TO_FIRST = PROMOTE.replace("00001", "0000X").replace("00002", "00001").replace("0000X", "00002")


@pytest.fixture
def deployed(cloud):
    """Functions as a deployment left them with the pool's first revision, and then another deployment."""
    names = ("warmpool-dev-digits", "warmpool-dev-embed")
    cloud.change(functions={name: ["pool-00001"] for name in names}, serving=dict.fromkeys(names, "latest"))
    assert cloud.make("deploy", **QUICK).status == 0
    assert cloud.calls() == DEPLOY
    return cloud


def served(number):
    return {f"warmpool-dev-{name}": f"warmpool-dev-{name}-{number:05}=100" for name in ("digits", "embed")}


def test_a_rollback_takes_functions_then_the_pool_back_and_the_next_one_forward_again(deployed):
    assert deployed.make("rollback").status == 0
    assert deployed.calls()[len(DEPLOY) :] == [
        OUTPUTS, DESCRIBE, find("digits", "pool-00001"), send_back("digits", "00001"), find("embed", "pool-00001"),
        send_back("embed", "00001"), BACK_TO_FIRST,
    ]  # fmt: skip
    assert deployed.world["shares"] == {"pool-00001": 100}
    assert deployed.world["serving"] == served(1)
    before = len(deployed.calls())
    assert deployed.make("rollback").status == 0
    assert deployed.calls()[before:] == [
        OUTPUTS, DESCRIBE, PROMOTE, find("digits", "pool-00002"), send_back("digits", "00002"),
        find("embed", "pool-00002"), send_back("embed", "00002"),
    ]  # fmt: skip
    assert deployed.world["shares"] == {"pool-00002": 100}
    assert deployed.world["serving"] == served(2)
    assert deployed.make("deploy", **QUICK).status == 0
    assert set(deployed.world["serving"].values()) == {"latest"}


def test_a_function_of_which_nothing_was_deployed_with_the_pools_revision_stays(cloud):
    assert cloud.make("deploy", **QUICK).status == 0
    done = cloud.make("rollback")
    assert (done.status, done.told()) == (0, [])
    assert cloud.calls()[len(DEPLOY) :] == [
        OUTPUTS, DESCRIBE, find("digits", "pool-00001"), find("embed", "pool-00001"), BACK_TO_FIRST
    ]  # fmt: skip
    assert "warmpool-dev-embed stays" in done.err
    assert set(cloud.world["serving"].values()) == {"latest"}


def test_what_a_deployment_did_not_reach_does_not_go_back_further_than_the_rest(deployed):
    deployed.change(failing=["services update warmpool-dev-embed"], digest="sha256:" + "c" * 64)
    assert deployed.make("deploy", **QUICK).status == 2
    assert deployed.world["shares"] == {"pool-00003": 100}
    assert deployed.make("rollback").status == 0
    assert deployed.world["shares"] == {"pool-00002": 100}
    assert deployed.world["serving"] == served(2)


def test_a_rollback_leaves_out_a_functions_revision_that_never_started(deployed):
    deployed.change(failing=["services update warmpool-dev-embed"])
    assert deployed.make("deploy", **QUICK).status == 2  # of the functions alone: the pool has the image
    assert deployed.world["unready"] == ["warmpool-dev-embed-00003"]
    deployed.change(failing=[], digest="sha256:" + "c" * 64)
    assert deployed.make("deploy", **QUICK).status == 0
    assert deployed.make("rollback").status == 0
    assert deployed.world["shares"] == {"pool-00002": 100}
    assert deployed.world["serving"]["warmpool-dev-embed"] == "warmpool-dev-embed-00002=100"
    assert deployed.world["serving"]["warmpool-dev-digits"] == "warmpool-dev-digits-00003=100"


def test_a_function_that_does_not_go_back_keeps_neither_the_others_nor_the_pool(deployed):
    deployed.change(failing=["services update-traffic warmpool-dev-digits"])
    done = deployed.make("rollback")
    assert done.status == 2
    (line,) = [line for line in done.told() if not line.startswith("gcloud: ")]
    assert line.startswith("rollback: pool-00001 has all requests of the pool, but not every function follows: gcloud")
    assert deployed.world["shares"] == {"pool-00001": 100}
    assert deployed.world["serving"] == {
        "warmpool-dev-digits": "latest",
        "warmpool-dev-embed": served(1)["warmpool-dev-embed"],
    }


def test_a_rollback_ends_a_trial_and_leaves_functions_as_they_are(cloud):
    cloud.change(functions={"warmpool-dev-embed": ["pool-00001", "pool-00001"]})
    cloud.change(shares={"pool-00001": 90, "pool-00002": 10}, tags={"canary": "pool-00002", "previous": "pool-00000"})
    assert cloud.make("rollback").status == 0
    assert cloud.calls() == [OUTPUTS, DESCRIBE, BACK]
    assert cloud.world["shares"] == {"pool-00001": 100}
    assert cloud.world["serving"] == {}


def test_a_rollback_to_nothing_is_refused(cloud):
    done = cloud.make("rollback")
    assert done.status == 2
    assert "no revision has the tag previous" in done.err
    assert cloud.calls() == [IDENTIFY[0], DESCRIBE]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--share 50", "--share is 50, allowed: 1 to 49"),
        ("--canary-s -1", "--canary-s is -1.0, allowed: 0 to 86400"),
        ("--every-s nan", "--every-s is nan, allowed: 0 to 86400"),
    ],
)
def test_a_limit_that_is_not_allowed_is_told_before_anything_runs(cloud, argument, words):
    done = cloud.make("deploy", ARGS=argument)
    assert done.status == 2
    assert words in done.err
    assert cloud.calls() == []
