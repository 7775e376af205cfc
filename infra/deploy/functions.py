"""The functions: light, without state, and started by Cloud Run in a second. They follow the pool."""

from __future__ import annotations

from collections.abc import Sequence

from infra.deploy.errors import CommandFailed, DeployError
from infra.deploy.settings import Settings
from infra.deploy.shell import Shell, hole


class Functions:
    """The functions' Cloud Run services.

    Args:
        shell: What gcloud is run through.
        settings: What is deployed to.
        names: Theirs.
    """

    def __init__(self, shell: Shell, settings: Settings, names: Sequence[str]) -> None:
        self._shell = shell
        self._names = names
        self._place = (f"--region={settings.region}", f"--project={settings.project}")

    def deploy(self, image: str) -> None:
        """Let each run this image; what does not start gets no requests. Raises DeployError."""
        if self._shell.dry:
            self._shell.line("for function in $function_names; do")
            self._update(hole("function"), image)
            self._shell.line("done")
            return
        for name in self._names:
            try:
                if self._image_of(name) != image:
                    self._update(name, image)
            except CommandFailed as error:
                raise DeployError(f"the pool is done, but not all functions are: {error}; run this again") from None

    def _image_of(self, name: str) -> str:
        return self._shell.read(
            "gcloud", "run", "services", "describe", name, *self._place,
            "--format=value(spec.template.spec.containers[0].image)",
        )  # fmt: skip

    def _update(self, name: str, image: str) -> None:
        self._shell.run("gcloud", "run", "services", "update", name, f"--image={image}", *self._place, "--quiet")
