from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from supervisor.options import ServerOptions

from examples.children import RunFailed
from infra.stack.folder import Folder
from infra.stack.options import Options, Ports
from infra.stack.services import Service, services
from infra.stack.supervisor import Supervisor, configuration

ODD = ("with space", 'quo"te', "apo'strophe", "back\\slash", "$HOME", "comma,")


def read_back(folder: Folder, made: tuple[Service, ...]) -> dict:
    """What supervisord itself makes of the configuration, by name."""
    folder.make()
    folder.configuration.write_text(configuration(folder, made, "/usr/bin/setpriv"))
    options = ServerOptions()
    options.realize(["--configuration", str(folder.configuration)], doc="")
    return {group.process_configs[0].name: group.process_configs[0] for group in options.process_group_configs}


def test_supervisord_reads_commands_and_environments_as_they_are(tmp_path: Path) -> None:
    one = Service("odd", ("/bin/echo", *ODD), "http://127.0.0.1:1", "/", {"ODD": "|".join(ODD), "OTHER": ""})
    found = read_back(Folder(tmp_path / "a folder"), (one,))["odd"]
    started = ["/usr/bin/setpriv", "--pdeathsig", "TERM", "--", "env", f"ODD={'|'.join(ODD)}", "OTHER="]
    assert shlex.split(found.command) == [*started, "/bin/echo", *ODD]
    assert found.stdout_logfile == str(tmp_path / "a folder" / "logs" / "odd.log")
    assert not found.autostart


def test_it_ends_functions_first_then_instances_then_what_they_need(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "folder")
    made = services(Options(Ports(), (), "f.py", "f"), folder, Path("/gcs"), Path("/usr/bin/prometheus"))
    found = read_back(folder, made)
    order = sorted(found, key=lambda name: found[name].priority, reverse=True)
    assert order[0] == "functions"
    assert set(order[1:3]) == {"instance-1", "instance-2"}
    assert set(order[3:]) == {"gcs", "otlp", "prometheus"}


@pytest.mark.parametrize("bad", ["a ;b", "a #b", "a\nb", "50%"])
def test_what_its_configuration_cannot_say_is_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="cannot say"):
        configuration(Folder(tmp_path), (Service("one", ("run", bad), "", ""),), "setpriv")


def test_a_supervisor_that_is_not_there_has_no_processes(tmp_path: Path) -> None:
    supervisor = Supervisor(Folder(tmp_path))
    assert supervisor.processes() is None
    with pytest.raises(RunFailed, match="does not answer"):
        supervisor.shut_down()
