"""A deployment: executables first, then a revision without requests, then some of them, then all; or back.

Whatever fails after the new revision was made sends all requests to the old one again. What was done before an
interruption is not done twice. See docs/adr/0024-how-a-revision-gets-its-requests.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NoReturn

from infra.deploy.asking import Asker
from infra.deploy.canary import Counted, NoMetrics, read_metrics, worse
from infra.deploy.errors import DeployError, UsageError
from infra.deploy.followers import Followers
from infra.deploy.publish_job import PublishJob
from infra.deploy.revisions import CANARY, PREVIOUS, STABLE, Pool, targets
from infra.deploy.shell import Document, Shell, undisturbed

_NEVER = Counted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How carefully it is done."""

    share: int = 10
    """Percent of the requests that the canary gets, 1 to 49."""
    canary_s: float = 300.0
    """Time that it is watched."""
    requests_min: int = 100
    """Requests that an instance of it has to have answered by then."""
    ready_s_max: float = 600.0
    """Time until it has to be ready."""
    every_s: float = 2.0
    """Time from one look to the next."""

    def __post_init__(self) -> None:
        """Raise UsageError for a value that is not allowed."""
        if not 1 <= self.share <= 49:
            raise UsageError(f"--share is {self.share}, allowed: 1 to 49 percent")
        for name in ("canary_s", "requests_min", "ready_s_max", "every_s"):
            if not 0 <= getattr(self, name) <= 86_400:
                raise UsageError(f"--{name.replace('_', '-')} is {getattr(self, name)}, allowed: 0 to 86400")


class Deployment:
    """Brings an image to the pool.

    Args:
        shell: What gcloud is run through, and what is told to a person.
        pool: The service.
        job: Makes the executables.
        asker: Asks revisions.
        limits: How carefully.
    """

    def __init__(self, shell: Shell, pool: Pool, job: PublishJob, asker: Asker, limits: Limits) -> None:
        self._shell = shell
        self._pool = pool
        self._job = job
        self._asker = asker
        self._limits = limits

    def deploy(self, image: str, publisher: str) -> str:
        """All of it. Raises DeployError; then the old revision has all requests, or the message says how it gets them.

        Args:
            image: Name and digest of the instance's image.
            publisher: Those of the publish job's.

        Returns:
            The revision that has all requests.
        """
        service = self._pool.describe()
        stable = self._pool.stable_revision(service)
        before = "" if self._shell.dry else self._pool.image_of(stable)
        if before == image and self._settled(service, stable):
            self._shell.say(f"nothing to do: {stable} has all requests, and runs {image}")
            return stable
        self._job.run(publisher)
        try:
            canary, url = self._canary(service, stable, image)
            self._try(stable, canary, url, compare=not before or _repository(before) == _repository(image))
            self._pool.send({canary: 100}, tags={PREVIOUS: stable}, without=(CANARY, STABLE))
        except (DeployError, KeyboardInterrupt) as error:
            self._go_back(stable, str(error) or "interrupted")
        except Exception as error:  # noqa: BLE001  a mistake of ours must not leave a canary with requests either
            self._go_back(stable, f"{type(error).__name__}: {error}")
        self._shell.say(f"{canary} has all requests; make rollback goes back to {stable}")
        return canary

    def _settled(self, service: Document, stable: str) -> bool:
        """Whether it has all requests, and is the newest: what `make infra-up` changed waits in a newer one."""
        newest = service.content["status"].get("latestCreatedRevisionName", stable)
        return {target.revision for target in targets(service.content) if target.percent} == {stable} == {newest}

    def _canary(self, service: Document, stable: str, image: str) -> tuple[str, str]:
        """The revision that is tried, and its URL: a new one, or what a run that was ended left of this image."""
        if not self._shell.dry:
            left = self._pool.tagged(service, CANARY)
            if left not in {"", stable} and self._pool.image_of(left) == image:
                self._shell.say(f"going on with {left}, which runs this image already")
                return left, self._pool.url(service, CANARY)
        self._shell.say("a new revision, which gets no requests")
        self._pool.add(image)
        service = self._pool.describe()
        canary = self._pool.tagged(service, CANARY)
        if not canary:
            raise DeployError(f"no revision has the tag {CANARY} after it was made")
        return canary, self._pool.url(service, CANARY)

    def _try(self, stable: str, canary: str, url: str, *, compare: bool) -> None:
        self._shell.say(f"waiting until it is ready, {self._limits.ready_s_max:g} s at most")
        self._asker.wait_ready(url, self._limits.ready_s_max, self._limits.every_s)
        if not compare:
            self._shell.say(f"{stable} runs another image than ours, so there is nothing to compare with")
            return
        share = self._limits.share
        self._shell.say(f"{share} % of the requests, for {self._limits.canary_s:g} s")
        self._pool.send({canary: share, stable: 100 - share}, tags={STABLE: stable})
        stable_url = self._pool.url(self._pool.describe(), STABLE)
        self._shell.line(f"sleep {self._limits.canary_s:g}")
        self._watch(url, stable_url)
        service = self._pool.describe()
        if not self._shell.dry and canary not in {one.revision for one in targets(service.content) if one.percent}:
            raise DeployError(f"somebody has taken the requests of {canary} away meanwhile")

    def _watch(self, canary_url: str, stable_url: str) -> None:
        """Return if the canary was no worse for as long as it has to be. Raises DeployError with what shows it."""
        end_s = time.monotonic() + self._limits.canary_s
        canary = stable = _NEVER
        while True:
            stable = self._most(stable, stable_url)
            canary = self._most(canary, canary_url)
            if self._shell.dry:
                return
            if reason := worse(stable, canary, self._limits.requests_min):
                raise DeployError(f"the new revision is worse: {reason}")
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(self._limits.every_s, left_s))
        if canary.answered < self._limits.requests_min:
            raise DeployError(
                f"too little was seen to judge the new revision: an instance answered {canary.answered} requests in "
                f"{self._limits.canary_s:g} s, --requests-min is {self._limits.requests_min}"
            )
        self._shell.say(
            f"no worse: {canary.failed} of {canary.answered} requests failed, "
            f"of the old revision's {stable.failed} of {stable.answered}"
        )

    def _most(self, known: Counted, url: str) -> Counted:
        """Of what was known and what an instance says now, the one with more requests: any instance may answer."""
        text = self._asker.metrics(url)
        try:
            seen = read_metrics(text) if text else _NEVER
        except NoMetrics as error:
            raise DeployError(f"{url}/metrics is not what an instance says: {error}") from None
        return max(known, seen, key=lambda counted: counted.answered)

    def _go_back(self, stable: str, why: str) -> NoReturn:
        try:
            with undisturbed():
                self._shell.say(f"{why}; all requests go to {stable} again")
                self._pool.send({stable: 100}, without=(CANARY, STABLE))
        except DeployError as error:
            raise DeployError(f"{why}; and going back failed ({error}): try make rollback") from None
        raise DeployError(f"{why}; {stable} has all requests again")


def roll_back(shell: Shell, pool: Pool, functions: Followers) -> None:
    """End a trial, or go back to the revision that had all requests before the last promotion.

    Functions go back before the pool, and forward after it, so that none calls an older pool than it was made for. A
    trial that ends leaves them as they are: it never reached them.

    Raises:
        DeployError: There is nothing to go back to; or a function did not go, and the pool did.
    """
    service = pool.describe()
    stable = pool.stable_revision(service)
    if shell.dry:
        goal = pool.tagged(service, PREVIOUS)
    elif any(target.percent and target.revision != stable for target in targets(service.content)):
        goal = stable
    else:
        goal = pool.tagged(service, PREVIOUS)
    if not goal:
        raise DeployError(f"no revision has the tag {PREVIOUS}, for make deploy promoted none: see make status")
    if goal == stable:
        pool.send({goal: 100}, without=(CANARY, STABLE))
        failed = []
    else:
        failed = _exchange(shell, pool, functions, stable, goal)
    if failed:
        raise DeployError(f"{goal} has all requests of the pool, but not every function follows: {'; '.join(failed)}")
    shell.say(f"{goal} has all requests")


def _exchange(shell: Shell, pool: Pool, functions: Followers, stable: str, goal: str) -> list[str]:
    """All of it to another revision; Cloud Run numbers them, with zeros in front. Returns which functions failed."""
    forward = goal > stable
    shell.line(f'if [ "${PREVIOUS}_revision" \\> "${STABLE}" ]; then')
    if forward or shell.dry:
        pool.send({goal: 100}, tags={PREVIOUS: stable}, without=(CANARY, STABLE))
    shell.line("fi")
    failed = functions.roll_back(goal)
    shell.line(f'if ! [ "${PREVIOUS}_revision" \\> "${STABLE}" ]; then')
    if not forward or shell.dry:
        pool.send({goal: 100}, tags={PREVIOUS: stable}, without=(CANARY, STABLE))
    shell.line("fi")
    return failed


def _repository(image: str) -> str:
    return image.partition("@")[0]
