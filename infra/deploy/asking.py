"""Asks a revision over HTTP as the function's service account does: who deploys needs no right to call the pool."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from http.client import HTTPException
from urllib.parse import urlsplit

from infra.deploy.errors import DeployError
from infra.deploy.shell import Shell, quoted

ANSWER_S_MAX = 10.0
ANSWER_BYTES_MAX = 16 << 20
NO_ANSWER = 0  # in place of a status
_READY, _METRICS = "/v2/health/ready", "/metrics"


class Asker:
    """Asks with an identity token, made when it is needed.

    Args:
        shell: What gcloud is run through.
        account: The service account that is impersonated.
        audience: The service's own URL, which tokens are made for.
    """

    def __init__(self, shell: Shell, account: str, audience: str) -> None:
        self._shell = shell
        self._token_command = (
            "gcloud", "auth", "print-identity-token", f"--impersonate-service-account={account}",
            f"--audiences={audience}",
        )  # fmt: skip
        self._token = ""

    def get(self, url: str, path: str) -> tuple[int, str]:
        """Status and body; NO_ANSWER and the reason where there is none.

        Raises:
            DeployError: The account may not call the pool, or may not be impersonated.
        """
        status, body = self._ask(url, path)
        if status in {401, 403}:  # a token is good for an hour, and a deployment may take longer
            self._token = ""
            status, body = self._ask(url, path)
        if status in {401, 403}:
            raise DeployError(f"{url}{path} answers {status} to {self._token_command[3].partition('=')[2]}: {_DENIED}")
        return status, body

    def wait_ready(self, url: str, wait_s_max: float, every_s: float) -> None:
        """Return once a revision says that it is ready. Raises DeployError if it does not in time."""
        if self._shell.dry:
            self._shell.value("token", *self._token_command)
            self._shell.line(f"until {_curl(url, _READY)}; do sleep {every_s:g}; done")
            return
        end_s = time.monotonic() + wait_s_max
        told = ""
        while True:
            status, body = self.get(url, _READY)
            if status == 200:
                return
            seen = f"{status} {' '.join(body.split())[:300]}" if status else body
            if seen != told:
                self._shell.say(f"not ready: {seen}")
                told = seen
            if time.monotonic() >= end_s:
                where = _WHERE if status in {NO_ANSWER, 404} else ""
                raise DeployError(f"the new revision is not ready after {wait_s_max:g} s: {seen}{where}")
            time.sleep(every_s)

    def metrics(self, url: str) -> str:
        """What a revision's metrics say, "" if they do not answer."""
        if self._shell.dry:
            self._shell.line(_curl(url, _METRICS))
            return ""
        status, body = self.get(url, _METRICS)
        return body if status == 200 else ""

    def _ask(self, url: str, path: str) -> tuple[int, str]:
        self._token = self._token or self._shell.read(*self._token_command, quiet=True)
        if urlsplit(url).scheme not in {"http", "https"}:
            raise DeployError(f"the revision's URL is {url!r}, allowed: https://...")
        request = urllib.request.Request(url + path, headers={"authorization": f"Bearer {self._token}"})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as response:  # noqa: S310
                return response.status, response.read(ANSWER_BYTES_MAX).decode(errors="replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(ANSWER_BYTES_MAX).decode(errors="replace")
        except (OSError, HTTPException) as error:
            return NO_ANSWER, f"no answer ({error})"


_DENIED = "it needs run.invoker on the pool, as Terraform grants it"
_WHERE = " (the pool takes requests from its project's VPC networks alone: run this on a machine there)"


def _curl(url: str, path: str) -> str:
    return f'curl --fail --silent --show-error --header "authorization: Bearer $token" {quoted([url + path])}'
