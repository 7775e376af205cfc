"""The pool's revisions on Cloud Run, and who of them gets requests.

Two tags say what Cloud Run itself does not keep: `canary` is the revision that is being tried, `stable` the one that
it is compared with, and after a promotion `previous` the one to go back to. A tag also gives a revision a URL of its
own, at which it can be asked without getting anybody's requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.deploy.errors import DeployError
from infra.deploy.settings import Settings
from infra.deploy.shell import Document, Shell

CANARY, STABLE, PREVIOUS = "canary", "stable", "previous"
_MOST = "[.status.traffic[] | select((.percent // 0) > 0)] | max_by(.percent) | .revisionName"


@dataclass(frozen=True, slots=True)
class Target:
    """Something that a service sends requests to, or has a tag for."""

    revision: str
    percent: int
    tag: str
    url: str


def targets(service: Any) -> list[Target]:
    """What a service's description says of traffic.

    Raises:
        DeployError: It is no description of a service that is up.
    """
    try:
        found = [
            Target(one["revisionName"], int(one.get("percent") or 0), one.get("tag") or "", one.get("url") or "")
            for one in service["status"]["traffic"]
        ]
    except (KeyError, TypeError, ValueError):
        found = []
    if not any(target.percent for target in found):
        raise DeployError("the service sends requests to no revision: look at make status, and run make infra-up")
    return found


def most_used(service: Any) -> str:
    """The revision with the largest share."""
    return max(targets(service), key=lambda target: target.percent).revision


class Pool:
    """The Cloud Run service.

    Args:
        shell: What gcloud is run through.
        settings: What is deployed to.
        name: The service's.
    """

    def __init__(self, shell: Shell, settings: Settings, name: str) -> None:
        self._shell = shell
        self.name = name
        self._place = (f"--region={settings.region}", f"--project={settings.project}")

    def describe(self) -> Document:
        """The service as Cloud Run has it now."""
        return self._shell.document(
            "service", "gcloud", "run", "services", "describe", self.name, *self._place, "--format=json"
        )

    def image_of(self, revision: str) -> str:
        """The image that a revision runs."""
        return self._shell.value(
            "image_of", "gcloud", "run", "revisions", "describe", revision, *self._place,
            "--format=value(spec.containers[0].image)",
        )  # fmt: skip

    def add(self, image: str) -> None:
        """A new revision with this image and no requests, tagged as the canary; waits until Cloud Run started it."""
        self._shell.run(
            "gcloud", "run", "services", "update", self.name, f"--image={image}", "--no-traffic", f"--tag={CANARY}",
            *self._place, "--quiet",
        )  # fmt: skip

    def send(
        self, percents: Mapping[str, int], *, tags: Mapping[str, str] | None = None, without: tuple[str, ...] = ()
    ) -> None:
        """Share requests out, and set tags and take them away in the same step."""
        shares = ",".join(f"{revision}={percent}" for revision, percent in percents.items())
        named = ",".join(f"{tag}={revision}" for tag, revision in (tags or {}).items())
        self._shell.run(
            "gcloud", "run", "services", "update-traffic", self.name,
            *((f"--to-revisions={shares}",) if shares else ()),
            *((f"--update-tags={named}",) if named else ()),
            *((f"--remove-tags={','.join(without)}",) if without else ()),
            *self._place, "--quiet",
        )  # fmt: skip

    def stable_revision(self, service: Document) -> str:
        """The revision with the largest share."""
        return service.pick("stable", _MOST, most_used)

    def tagged(self, service: Document, tag: str) -> str:
        """The revision of a tag, "" if there is none."""
        return service.pick(f"{tag}_revision", _of_tag(tag, "revisionName"), lambda content: _tagged(content, tag)[0])

    def url(self, service: Document, tag: str) -> str:
        """The URL of a tag, "" if there is none."""
        return service.pick(f"{tag}_url", _of_tag(tag, "url"), lambda content: _tagged(content, tag)[1])


def _of_tag(tag: str, field: str) -> str:
    return f'.status.traffic[] | select(.tag == "{tag}") | .{field}'


def _tagged(service: Any, tag: str) -> tuple[str, str]:
    return next(((target.revision, target.url) for target in targets(service) if target.tag == tag), ("", ""))
