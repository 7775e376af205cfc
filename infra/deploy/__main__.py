"""The command line behind make's targets; `make` says what each of them does."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from infra.deploy.asking import Asker
from infra.deploy.deployment import Deployment, Limits, roll_back
from infra.deploy.errors import DeployError
from infra.deploy.followers import Followers
from infra.deploy.images import FUNCTION, FUNCTIONS, INSTANCE, PUBLISHER, VARIANTS, Images, commit_tag, pushed_image
from infra.deploy.infrastructure import Infrastructure
from infra.deploy.publish_job import PublishJob
from infra.deploy.revisions import Pool
from infra.deploy.settings import Settings, read_settings
from infra.deploy.shell import ENDING, Shell, tell
from infra.deploy.status import show_status

SETTINGS = Path("infra/settings.env")


class Command:
    """One command: what it was given, and what it needs.

    Args:
        arguments: As `parser` reads them.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.given = arguments
        self.shell = Shell(dry=arguments.dry_run)
        if arguments.command not in _LOCAL:
            _ = self.settings  # what is wrong with them is told before anything is run
        self.shell.line("set -eu")

    @cached_property
    def settings(self) -> Settings:
        return read_settings(self.given.settings)

    @cached_property
    def infrastructure(self) -> Infrastructure:
        return Infrastructure(self.shell, self.settings)

    def infra_init(self) -> None:
        """Fetch Terraform's providers, and open its state."""
        self.infrastructure.init()

    def infra_plan(self) -> None:
        """Show what infra-up would change."""
        self.infrastructure.plan()

    def infra_up(self) -> None:
        """Make the cloud what infra/terraform says."""
        self.infrastructure.up(self.given.confirm)

    def infra_down(self) -> None:
        """Destroy the environment."""
        self.infrastructure.down(self.given.confirm)

    def image(self) -> None:
        """Build the images of this commit."""
        self._images().build(self.given.base, self.given.functions)

    def push(self) -> None:
        """Push them to the environment's registry."""
        self.shell.need("gcloud")
        images = self._images()
        (registry,) = self.infrastructure.outputs("registry")
        host = f"{self.settings.region}-docker.pkg.dev" if self.shell.dry else registry.partition("/")[0]
        images.push(registry, host)

    def precompile(self) -> None:
        """Let the publish job make what the store lacks for this commit's image."""
        self.shell.need("gcloud")
        registry, job = self.infrastructure.outputs("registry", "publish_job")
        PublishJob(self.shell, self.settings, job).run(*self._pushed(registry, PUBLISHER))

    def deploy(self) -> None:
        """Precompile, new revision, ready check, canary, promotion; or back to the old one. Then what follows."""
        self.shell.need("gcloud")
        given = self.given
        limits = Limits(
            share=given.share, canary_s=given.canary_s, requests_min=given.requests_min,
            ready_s_max=given.ready_s_max, every_s=given.every_s,
        )  # fmt: skip
        registry, name, job, account, url = self.infrastructure.outputs(
            "registry", "pool_service", "publish_job", "function_service_account", "pool_url"
        )
        functions = self._followers("services", "function_names")
        care = self._followers("jobs", "care_jobs")
        instance, publisher, function = self._pushed(registry, INSTANCE, PUBLISHER, FUNCTION)
        deployment = Deployment(
            self.shell, Pool(self.shell, self.settings, name), PublishJob(self.shell, self.settings, job),
            Asker(self.shell, account, url), limits,
        )  # fmt: skip
        revision = deployment.deploy(instance, publisher)
        functions.deploy(function, revision)
        care.deploy(publisher, revision)

    def rollback(self) -> None:
        """Give all requests to the revisions that had them before: functions, then the pool."""
        self.shell.need("gcloud")
        (name,) = self.infrastructure.outputs("pool_service")
        functions = self._followers("services", "function_names")
        roll_back(self.shell, Pool(self.shell, self.settings, name), functions)

    def status(self) -> None:
        """Show which revisions have which share of the requests."""
        self.shell.need("gcloud")
        show_status(self.shell, self.settings, self.infrastructure, as_json=self.given.json)

    def _followers(self, kind: str, output: str) -> Followers:
        return Followers(self.shell, self.settings, kind, output, self.infrastructure.listed(output))

    def _tag(self) -> str:
        return commit_tag(self.shell, self.given.tag)

    def _images(self) -> Images:
        return Images(self.shell, self._tag(), self.given.variant)

    def _pushed(self, registry: str, *names: str) -> list[str]:
        tag = self._tag()
        return [pushed_image(self.shell, registry, name, tag, self.settings.project) for name in names]


_COMMANDS: dict[str, Callable[[Command], None]] = {
    "infra-init": Command.infra_init,
    "infra-plan": Command.infra_plan,
    "infra-up": Command.infra_up,
    "infra-down": Command.infra_down,
    "image": Command.image,
    "push": Command.push,
    "precompile": Command.precompile,
    "deploy": Command.deploy,
    "rollback": Command.rollback,
    "status": Command.status,
}
_LOCAL = {"image"}  # asks no cloud, so it need not be said which


def parser() -> argparse.ArgumentParser:
    """The commands and their flags."""
    found = argparse.ArgumentParser(prog="python -m infra.deploy", description=__doc__)
    found.add_argument("command", choices=_COMMANDS, help="which")
    found.add_argument("--settings", type=Path, default=SETTINGS, help=f"file with PROJECT, REGION, ENV ({SETTINGS})")
    found.add_argument("--dry-run", action="store_true", help="print the commands as a script, and run none")
    found.add_argument("--confirm", default="", metavar="yes", help="do what cannot be undone without asking")
    found.add_argument("--json", action="store_true", help="status as JSON")
    found.add_argument("--tag", default="", help="of the images; by default the commit")
    found.add_argument("--variant", default="cpu", choices=VARIANTS, help="of the instance's image (cpu)")
    found.add_argument("--base", default="", help="what images are built on, best with its digest (debian:trixie-slim)")
    found.add_argument("--functions", default=FUNCTIONS, help=f"folder of the function image's functions ({FUNCTIONS})")
    limits = Limits()
    found.add_argument("--share", type=int, default=limits.share, help="percent of the canary's requests (10)")
    found.add_argument("--canary-s", type=float, default=limits.canary_s, help="how long it is watched (300)")
    found.add_argument("--requests-min", type=int, default=limits.requests_min, help="seen of an instance of it (100)")
    found.add_argument("--ready-s-max", type=float, default=limits.ready_s_max, help="until it has to be ready (600)")
    found.add_argument("--every-s", type=float, default=limits.every_s, help="from one look to the next (2)")
    return found


def _interrupted(*_: object) -> NoReturn:
    for number in ENDING:  # make passes on what it gets, and a person may press ^C twice: going back takes a while
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(words: list[str] | None = None) -> int:
    """Run a command; 0 if it did what it should, 1 if that failed, 2 if something was missing beforehand."""
    arguments = parser().parse_args(words)
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup a terminal may go
            signal.signal(number, _interrupted)
    try:
        _COMMANDS[arguments.command](Command(arguments))
    except DeployError as error:
        tell(f"{arguments.command}: {error}")
        return error.status
    except KeyboardInterrupt:
        tell(f"{arguments.command}: interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
