"""What follows the pool: functions, light and without state, and the jobs that care for the store.

A function's revision has a label that names the pool's revision which had all requests when it was made. So Cloud Run
itself knows what belongs together, and it goes back together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from infra.deploy.errors import CommandFailed, DeployError
from infra.deploy.settings import Settings
from infra.deploy.shell import Shell, hole

_POOL = "pool"  # the label
_READY = 'any(.status.conditions[]?; .type == "Ready" and .status == "True")'


class Followers:
    """Cloud Run services, or jobs, that are to run an image.

    Args:
        shell: What gcloud is run through.
        settings: What is deployed to.
        kind: "services" or "jobs".
        output: Terraform's name for them, and the script's variable.
        names: Theirs.
    """

    def __init__(self, shell: Shell, settings: Settings, kind: str, output: str, names: Sequence[str]) -> None:
        self._shell = shell
        self._kind = kind
        self._output = output
        self._names = names
        self._place = (f"--region={settings.region}", f"--project={settings.project}")

    def deploy(self, image: str, pool: str) -> None:
        """Let each run it. Of a service, what does not start gets no requests.

        Args:
            image: Name and digest.
            pool: The pool's revision that it belongs to.

        Raises:
            DeployError: One did not.
        """
        for name in self._each():
            try:
                self._update(name, image, pool)
            except CommandFailed as error:
                raise DeployError(f"the pool is done, but not all that follows it: {error}; run this again") from None

    def roll_back(self, pool: str) -> list[str]:
        """Give the requests of each to its newest ready revision that belongs to this one of the pool; or it stays.

        Returns:
            What failed; the others are back.
        """
        failed = []
        for name in self._each():
            try:
                self._send_back(name, pool)
            except CommandFailed as error:
                failed.append(str(error))
        return failed

    def _each(self) -> Iterator[str]:
        """Their names; in a dry run the variable of a loop around what is printed meanwhile."""
        if not self._shell.dry:
            yield from self._names
            return
        self._shell.line(f"for follower in ${self._output}; do")
        yield hole("follower")
        self._shell.line("done")

    def _update(self, name: str, image: str, pool: str) -> None:
        service = self._kind == "services"
        label = (f"--update-labels={_POOL}={pool}",) if service else ()
        command = ("gcloud", "run", self._kind, "update", name, f"--image={image}", *label)
        self._shell.run(*command, *self._place, "--quiet")
        if service:  # a rollback may have left the requests at a revision's name
            self._shell.run("gcloud", "run", "services", "update-traffic", name, "--to-latest", *self._place, "--quiet")

    def _send_back(self, name: str, pool: str) -> None:
        revisions = self._shell.document(
            "follower_revisions", "gcloud", "run", "revisions", "list", f"--service={name}",
            f"--filter=metadata.labels.{_POOL}={pool}", "--sort-by=~metadata.creationTimestamp", *self._place,
            "--format=json",
        )  # fmt: skip
        revision = revisions.pick("follower_revision", f'[.[] | select({_READY})][0].metadata.name // ""', _first_ready)
        if not revision:
            self._shell.say(f"{name} stays: nothing of it was deployed with {pool}")
            return
        self._shell.line('if [ -n "$follower_revision" ]; then')
        self._shell.run(
            "gcloud", "run", "services", "update-traffic", name, f"--to-revisions={revision}=100", *self._place,
            "--quiet",
        )  # fmt: skip
        self._shell.line("fi")


def _first_ready(revisions: Any) -> str:
    """The first that started, "" for none: an update that failed leaves a revision with its label, too."""
    for one in revisions:
        for condition in one.get("status", {}).get("conditions", ()):
            if (condition.get("type"), condition.get("status")) == ("Ready", "True"):
                return str(one["metadata"]["name"])
    return ""
