"""supervisord: its configuration, and what it is asked over its own socket.

It starts the processes, starts again what dies (at once if it had come up, else after 1 s, then 2 s, and so on), and
writes down what they say. Each is started through `setpriv --pdeathsig`, so that it is asked to end if supervisord is
killed: nothing runs on without it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import xmlrpc.client  # both ends are ours, on a socket that only this user can open
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from examples.children import RunFailed
from infra.stack.folder import Folder
from infra.stack.services import STOP_S_MAX, Service

PROGRAM = Path(sys.executable).with_name("supervisord")
CALL_S_MAX = 10.0
START_S_MAX = 30.0
UP_S = 2  # a process that ran for so long had come up
RETRIES_MAX = 20
LOG_BYTES_MAX = 16 << 20
OWN_LOG = "supervisor"  # supervisord's own
RUNNING, STARTING = "RUNNING", "STARTING"
IDLE = frozenset({"STOPPED", "EXITED", "FATAL"})  # no process, and none to come


class Process(NamedTuple):
    """What supervisord says of a process: its state, pid (0 for none) and when it was started, since the epoch."""

    state: str
    pid: int
    started_s: float


class Supervisor:
    """The supervisord of a stack, whether it runs or not."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._transport = _Transport(folder.socket)
        self._server = xmlrpc.client.ServerProxy("http://supervisor", self._transport)

    def start(self, services: Sequence[Service], environment: Mapping[str, str]) -> None:
        """Start it, in the background, with nothing started by it yet.

        Raises:
            RunFailed: It does not come up.
        """
        setpriv = shutil.which("setpriv")
        if not setpriv:
            raise RunFailed("setpriv is not on the PATH; install util-linux")
        self._folder.configuration.write_text(configuration(self._folder, services, setpriv))
        command = [str(PROGRAM), "--configuration", str(self._folder.configuration)]
        done = subprocess.run(
            command,
            cwd=self._folder.path,  # through which the socket has a name that is never too long
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S_MAX,
            check=False,
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("Error")] or [done.stderr.strip()]
            raise RunFailed(f"supervisord does not start: {said[0]}")
        deadline_s = time.monotonic() + START_S_MAX
        while self.processes() is None:
            if time.monotonic() > deadline_s:
                raise RunFailed(f"supervisord does not answer; see {self._folder.log(OWN_LOG)}")
            time.sleep(0.05)

    def processes(self) -> dict[str, Process] | None:
        """Every process by its name; None if no supervisord answers."""
        try:
            found: Any = self._server.supervisor.getAllProcessInfo()
        except (OSError, HTTPException, xmlrpc.client.Error):
            return None
        finally:
            self._transport.close()
        return {one["name"]: Process(one["statename"], one["pid"], one["start"]) for one in found}

    def start_process(self, name: str) -> None:
        """Start a process that is stopped; returns at once."""
        self._call("startProcess", name, False)

    def stop_process(self, name: str) -> None:
        """Ask a process to end; returns at once. It is killed after STOP_S_MAX."""
        self._call("stopProcess", name, False)

    def shut_down(self) -> None:
        """Ask it to end."""
        self._call("shutdown")

    def _call(self, method: str, *arguments: Any) -> None:
        try:
            getattr(self._server.supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            raise RunFailed(f"supervisord refuses {method} {' '.join(map(str, arguments[:1]))}: {fault}") from None
        except (OSError, HTTPException, xmlrpc.client.Error) as error:
            raise RunFailed(f"supervisord does not answer: {error}") from None
        finally:
            self._transport.close()


def configuration(folder: Folder, services: Sequence[Service], setpriv: str) -> str:
    """What supervisord reads.

    Raises:
        RunFailed: A command or path holds what cannot be said in it.
    """
    own = {
        "logfile": folder.log(OWN_LOG),
        "logfile_maxbytes": LOG_BYTES_MAX,
        "logfile_backups": 1,
        "pidfile": folder.pid_file,
        "directory": Path.cwd(),
        **({"user": "root"} if os.geteuid() == 0 else {}),  # otherwise it complains that it is
    }
    sections: dict[str, dict[str, object]] = {
        "supervisord": own,
        "unix_http_server": {"file": f"/proc/self/cwd/{folder.socket.name}", "chmod": "0700"},
        "rpcinterface:supervisor": {
            "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
        },
        **{f"program:{one.name}": _program(folder, one, setpriv) for one in services},
    }
    lines = []
    for title, values in sections.items():
        lines += [f"[{title}]", *(f"{name} = {_value(str(value))}" for name, value in values.items()), ""]
    return "\n".join(lines)


def _program(folder: Folder, service: Service, setpriv: str) -> dict[str, object]:
    # supervisord's own form for variables knows no quotes within quotes.
    variables = [f"{name}={value}" for name, value in service.environment.items()]
    return {
        "command": shlex.join([setpriv, "--pdeathsig", "TERM", "--", "env", *variables, *service.command]),
        "priority": service.tier,
        "autostart": "false",
        "autorestart": "true",
        "startsecs": UP_S,
        "startretries": RETRIES_MAX,
        "stopwaitsecs": STOP_S_MAX,
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": folder.log(service.name),
        "stdout_logfile_maxbytes": LOG_BYTES_MAX,
        "stdout_logfile_backups": 1,
    }


def _value(text: str) -> str:
    for bad in ("\n", "%", " ;", " #", "\t;", "\t#"):  # some values are expanded twice, others once
        if bad in text:
            raise RunFailed(f"{text!r} holds {bad!r}, which supervisord's configuration cannot say")
    return text


class _Connection(HTTPConnection):
    """HTTP over a socket of a path, however long that is."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=CALL_S_MAX)
        self._path = path

    def connect(self) -> None:
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(CALL_S_MAX)
            self.sock.connect(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)


class _Transport(xmlrpc.client.Transport):
    """XML-RPC over a socket of a path, a connection a call; `close` after each."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> HTTPConnection:
        connection = _Connection(self._path)
        self._connection = (host, connection)  # what `close` closes
        return connection
