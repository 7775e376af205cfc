"""What follows the pool: functions, light and without state, and the jobs that care for the store."""

from __future__ import annotations

from collections.abc import Sequence

from infra.deploy.errors import CommandFailed, DeployError
from infra.deploy.settings import Settings
from infra.deploy.shell import Shell, hole


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
        self._place = (f"--region={settings.region}", f"--project={settings.project}", "--quiet")

    def deploy(self, image: str) -> None:
        """Let each run it. Of a service, what does not start gets no requests. Raises DeployError."""
        if self._shell.dry:
            self._shell.line(f"for follower in ${self._output}; do")
            self._update(hole("follower"), image)
            self._shell.line("done")
        for name in self._names:
            try:
                self._update(name, image)
            except CommandFailed as error:
                raise DeployError(f"the pool is done, but not all that follows it: {error}; run this again") from None

    def _update(self, name: str, image: str) -> None:
        self._shell.run("gcloud", "run", self._kind, "update", name, f"--image={image}", *self._place)
