"""The job that makes executables on the pool's own kind of machine, with the image that is to be deployed."""

from __future__ import annotations

from infra.deploy.settings import Settings
from infra.deploy.shell import Shell


class PublishJob:
    """The Cloud Run job.

    Args:
        shell: What gcloud is run through.
        settings: What is deployed to.
        name: The job's.
    """

    def __init__(self, shell: Shell, settings: Settings, name: str) -> None:
        self._shell = shell
        self._name = name
        self._place = (f"--region={settings.region}", f"--project={settings.project}", "--quiet")

    def run(self, image: str) -> None:
        """Let the job make what the store lacks for this image, and wait for it. Raises CommandFailed.

        It has nothing to do where the store has all of it, so that it can be run again at any time.
        """
        self._shell.say("making what the store lacks for this image, before it gets requests")
        self._shell.run("gcloud", "run", "jobs", "update", self._name, f"--image={image}", *self._place)
        self._shell.run("gcloud", "run", "jobs", "execute", self._name, "--wait", *self._place)
