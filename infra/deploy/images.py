"""The images: built here, pushed to the environment's registry, and found there by their digest.

They are named by the commit that they were built from. What is deployed is named by its digest, which nobody can move.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from infra.deploy.errors import CommandFailed, UsageError
from infra.deploy.shell import Shell, hole

ENGINES = ("podman", "docker", "buildah")
VARIANTS = ("cpu", "cuda")
FUNCTION, INSTANCE, PUBLISHER = "function", "instance", "publisher"
_FILES = {  # of each image, a target in it, and whether it has variants
    FUNCTION: ("infra/images/function/Containerfile", False),
    INSTANCE: ("infra/images/instance/Containerfile", True),
    PUBLISHER: ("infra/images/instance/Containerfile", True),
}
FUNCTIONS = "examples"
LOCK = "requirements-function.lock"
"""What a folder of functions needs, all of it, where it needs more than the client of the pool."""
_IGNORED = Path(".containerignore")
_LOCAL = "localhost/warmpool"
_ORIGIN = ("git", "config", "--get", "remote.origin.url")
_UNKNOWN = "unknown"
_CREDENTIALS = ("^([a-z+]+://)[^/]*@", r"\1")  # as sed -E has it, too
_LOGIN_USER = "oauth2accesstoken"  # what Artifact Registry calls whoever brings an access token


def commit_tag(shell: Shell, given: str) -> str:
    """The tag of what is built from this checkout: `given`, or the commit. Raises UsageError where that is not all."""
    if given:
        return given
    shell.need("git")
    if shell.dry:
        return shell.value("tag", "git", "rev-parse", "--short=12", "HEAD")
    if shell.read("git", "status", "--porcelain"):
        raise UsageError("the checkout has changes that are in no commit: commit them, or give TAG=name")
    return shell.read("git", "rev-parse", "--short=12", "HEAD")


class Images:
    """The images of a tag.

    Args:
        shell: What the engine is run through.
        tag: Of all of them.
        variant: Of those that touch jax: cpu, or cuda.
    """

    def __init__(self, shell: Shell, tag: str, variant: str) -> None:
        shell.need("|".join(ENGINES))
        self._shell = shell
        self._engine = next((engine for engine in ENGINES if shutil.which(engine)), ENGINES[0])
        self._tag = tag
        self._variant = variant

    def build(self, base: str = "", functions: str = FUNCTIONS) -> None:
        """Build them, with what this checkout holds.

        Args:
            base: What the builds begin with, in place of what infra/images has.
            functions: Folder of the functions that the function's image holds; a LOCK in it says what they need.

        Raises:
            UsageError: There is no such folder, or no image can hold it.
        """
        folder = _let_in(functions)
        needs = (f"--build-arg=REQUIREMENTS={folder / LOCK}",) if (folder / LOCK).is_file() else ()
        origin = self._origin()
        for name, (file, varies) in _FILES.items():
            self._shell.run(
                self._engine, "build", f"--file={file}", f"--target={name}", f"--build-arg=REVISION={self._tag}",
                f"--build-arg=SOURCE={origin}", *((f"--build-arg=BASE={base}",) if base else ()),
                *((f"--build-arg=VARIANT={self._variant}",) if varies else ()),
                *((f"--build-arg=FUNCTIONS={folder}", *needs) if name == FUNCTION else ()),
                f"--tag={_LOCAL}/{name}:{self._tag}", ".",
            )  # fmt: skip

    def _origin(self) -> str:
        """Where this checkout comes from, without the name and password that it is fetched with."""
        if self._shell.dry:
            self._shell.line(f"source=$({' '.join(_ORIGIN)} | sed -E 's#{'#'.join(_CREDENTIALS)}#')")
            self._shell.line(f': "${{source:={_UNKNOWN}}}"')
            return hole("source")
        if not shutil.which("git"):
            return _UNKNOWN
        try:
            found = self._shell.read(*_ORIGIN)
        except CommandFailed:  # it was cloned from nowhere
            return _UNKNOWN
        return re.sub(*_CREDENTIALS, found) or _UNKNOWN

    def push(self, registry: str, host: str) -> None:
        """Push them to a registry, `host/project/repository`."""
        self._shell.need("gcloud")
        self._shell.hand_over(
            ("gcloud", "auth", "print-access-token"),
            (self._engine, "login", "--username", _LOGIN_USER, "--password-stdin", host),
        )
        for name in _FILES:
            local, remote = (f"{place}/{name}:{self._tag}" for place in (_LOCAL, registry))
            self._shell.run(self._engine, "tag", local, remote)
            self._shell.run(self._engine, "push", remote)


def _let_in(functions: str) -> Path:
    """The folder, if images are built with it."""
    folder = Path(functions)
    if folder.is_absolute() or ".." in folder.parts or not folder.parts or " " in functions or not folder.is_dir():
        raise UsageError(f"FUNCTIONS is {functions!r}, allowed: a folder of this checkout, without blanks in its name")
    let_in = re.findall(r"^!(\S+)", _IGNORED.read_text(), re.MULTILINE)
    if not any(folder.is_relative_to(one) for one in let_in):
        raise UsageError(f"FUNCTIONS is {functions!r}, which no image is built with: add !{folder} to {_IGNORED}")
    return folder


def pushed_image(shell: Shell, registry: str, name: str, tag: str, project: str) -> str:
    """An image of this tag in the registry, by its digest.

    Raises:
        UsageError: It is not there.
        CommandFailed: It is not there, or the registry cannot be asked.
    """
    image = f"{registry}/{name}"
    digest = shell.value(
        f"{name}_digest", "gcloud", "artifacts", "docker", "images", "describe", f"{image}:{tag}",
        f"--project={project}", "--format=value(image_summary.digest)",
    )  # fmt: skip
    if not digest:
        raise UsageError(f"{image}:{tag} is not in the registry: run make image push first")
    return f"{image}@{digest}"
