"""The cloud's resources, by Terraform: what an environment consists of, and what its outputs name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from infra.deploy.confirmation import confirm
from infra.deploy.errors import UsageError
from infra.deploy.settings import Settings
from infra.deploy.shell import Document, Shell
from infra.deploy.variables import check_variables

_EXAMPLES = "infra/terraform/examples"
_PLAN = "warmpool.tfplan"


class Infrastructure:
    """One environment.

    Args:
        shell: What Terraform is run through, in the repository's root.
        settings: What is deployed to.
    """

    def __init__(self, shell: Shell, settings: Settings) -> None:
        shell.need("terraform")
        self._shell = shell
        self._settings = settings
        self._folder = f"{_EXAMPLES}/{settings.env}"
        if not Path(self._folder).is_dir():
            raise UsageError(f"ENV is {settings.env!r}, but there is no {self._folder}")

    def init(self) -> None:
        """Fetch providers and modules, and open the state."""
        self._terraform("init", "-input=false")

    def plan(self, *, destroy: bool = False) -> None:
        """Show what would change, and keep it for `apply`. Raises UsageError for a variable that is not there."""
        check_variables(Path(self._folder))
        variables = (f"-var=project={self._settings.project}", f"-var=region={self._settings.region}")
        self._terraform("plan", "-input=false", *(("-destroy",) if destroy else ()), f"-out={_PLAN}", *variables)

    def up(self, confirmed: str) -> None:
        """Make it what the configuration says, as the plan that was shown has it."""
        self.plan()
        confirm(self._shell, f"apply this plan to {self._settings.env}", self._settings.env, confirmed)
        self._terraform("apply", "-input=false", _PLAN)

    def down(self, confirmed: str) -> None:
        """Destroy it. Raises UsageError while anything in it is protected against that."""
        state = self._shell.document("state", "terraform", f"-chdir={self._folder}", "show", "-json")
        protected = sorted(_protected((state.content or {}).get("values", {}).get("root_module", {})))
        if protected:
            raise UsageError(
                f"deletion protection of {self._settings.env} is on ({', '.join(protected)}): "
                f"turn it off in {self._folder}, run make infra-up, then this again"
            )
        self.plan(destroy=True)
        confirm(self._shell, f"destroy {self._settings.env} and all that it holds", self._settings.env, confirmed)
        self._terraform("apply", "-input=false", _PLAN)

    def outputs(self, *names: str) -> list[str]:
        """What these outputs say, in this order. Raises UsageError if one is not there yet."""
        return [self._outputs.pick(name, f".{name}.value", partial(self._output, name=name)) for name in names]

    def listed(self, name: str) -> list[str]:
        """What a map among the outputs holds, in the order of its keys; empty for a dry run."""
        self._outputs.pick(name, f'[.{name}.value[]?] | join("\\n")', lambda _: "")
        content = (self._outputs.content or {}).get(name, {}).get("value") or {}
        return [content[key] for key in sorted(content)]

    @cached_property
    def _outputs(self) -> Document:
        return self._shell.document("outputs", "terraform", f"-chdir={self._folder}", "output", "-json")

    def _output(self, content: Any, *, name: str) -> str:
        value = content.get(name, {}).get("value") if isinstance(content, dict) else None
        if not isinstance(value, str) or not value:
            raise UsageError(f"terraform has no output {name!r} in {self._folder}: run make infra-up first")
        return value

    def _terraform(self, *arguments: str) -> None:
        self._shell.run("terraform", f"-chdir={self._folder}", *arguments)


def _protected(module: dict[str, Any]) -> Iterator[str]:
    """Addresses of what must not be destroyed, in a module of `terraform show -json` and those in it."""
    for resource in module.get("resources", ()):
        if resource.get("values", {}).get("deletion_protection") is True:
            yield resource["address"]
    for child in module.get("child_modules", ()):
        yield from _protected(child)
