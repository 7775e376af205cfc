from __future__ import annotations

from pathlib import Path

from infra.stack.folder import Folder
from infra.stack.options import Options, Ports
from infra.stack.services import services

OPTIONS = Options(Ports(), ("model.py",), "source.py", "target")


def test_all_servers_listen_on_loopback_alone(tmp_path: Path) -> None:
    for one in services(OPTIONS, Folder(tmp_path), Path("/gcs"), Path("/prometheus")):
        assert one.url.startswith("http://127.0.0.1:")
        told = " ".join(one.command)
        assert "0.0.0.0" not in told
        assert "127.0.0.1" in told or one.name == "otlp"  # which knows no other


def test_every_port_is_that_of_one_server(tmp_path: Path) -> None:
    made = services(OPTIONS, Folder(tmp_path), Path("/gcs"), Path("/prometheus"))
    assert len({one.url for one in made}) == len(made) == 6


def test_functions_have_the_addresses_of_both_instances_and_send_traces_to_the_receiver(tmp_path: Path) -> None:
    made = {one.name: one for one in services(OPTIONS, Folder(tmp_path), Path("/gcs"), None)}
    assert made["functions"].environment == {
        "FUNCTION_SOURCE": "source.py",
        "FUNCTION_TARGET": "target",
        "WARMPOOL_URLS": f"{made['instance-1'].url},{made['instance-2'].url}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": made["otlp"].url,
    }
    assert "prometheus" not in made


def test_instances_share_the_store_and_not_the_folder_of_copies(tmp_path: Path) -> None:
    found = [one for one in services(OPTIONS, Folder(tmp_path), Path("/gcs"), None) if one.tier == 1]
    stores, copies = (
        {one.command[one.command.index(flag) + 1] for one in found} for flag in ("--store", "--cache-folder")
    )
    assert stores == {"gs://warmpool"}
    assert len(copies) == 2
