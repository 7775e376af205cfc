"""Runs in a container, with the interpreter of its image, and writes down what is there.

The image has neither this file nor the tests: the text is given to the interpreter.
"""

import csv
import importlib
import json
import os
import ssl
import stat
import sys
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

SITE = Path(sys.prefix, "lib", f"python3.{sys.version_info.minor}", "site-packages")
LIBRARY = Path(os.__file__).parent
OWN = ("cache", "functions", "warmpool")
PROGRAMS = {"sh", "bash", "dash", "busybox", "apt", "dpkg", "perl", "uv", "pip", "su", "mount"}
UNCHECKED = b"\1\0\0\0"  # PEP 552: nobody looks at the source


def can_import(name):
    try:
        return bool(importlib.import_module(name))
    except ImportError:
        return False


def compiled(source):
    """Whether its bytecode is there, and never compared with the source."""
    try:
        return Path(cache_from_source(str(source))).read_bytes()[4:8] == UNCHECKED
    except OSError:
        return False


def can_write(folder):
    try:
        Path(folder, "probe").touch()
    except OSError:
        return False
    return True


def brought(packages):
    """The files of packages as their wheels had them, and their sizes; RECORD tells none of its own."""
    rows = ((one, row) for one in packages for row in csv.reader(one.read_text("RECORD").splitlines()))
    return {os.path.normpath(one.locate_file(path)): int(size) for one, (path, _, size) in rows if size}


tops = ("/usr", "/etc", "/opt", "/var", "/app")
files = [Path(folder, name) for top in tops for folder, _, names in os.walk(top) for name in names]
installed = list(metadata.distributions(path=[str(SITE)]))
dependencies = brought(one for one in installed if one.name != "xla-warmpool")
there = {path: Path(path).stat().st_size for path in dependencies if Path(path).is_file()}
changed = {path: size for path, size in there.items() if size != dependencies[path]}
modules = [Path(path).relative_to(SITE) for path in changed if path.endswith(".so")]
sources = [path for path in there if path.endswith(".py")]
ours = [path for path in files if path.suffix == ".py" and path.is_relative_to("/usr/lib")]
ours += [path for path in files if path.suffix == ".py" and path.is_relative_to("/app")]
ours += [path for name in OWN for path in Path(SITE, name).rglob("*.py")]
names = [file.name.partition(".")[0] for file in Path(LIBRARY, "lib-dynload").iterdir()]
names += [".".join((*module.parent.parts, module.name.partition(".")[0])) for module in modules]
bill = json.loads(Path("/usr/share/sbom/warmpool.cdx.json").read_text())
found = {
    "user": [os.getuid(), os.getgid()],
    "rights": [
        line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")
    ],
    "writable": [path for path in ("/", "/opt/warmpool", str(SITE), "/app", "/etc", "/tmp") if can_write(path)],
    "certificates": len(ssl.create_default_context().get_ca_certs()),
    "not_importable": [name for name in names if not can_import(name)],
    "packages": {one.name: one.version for one in installed},
    "bill": [[one["name"], one["version"], one.get("purl", "")] for one in bill["components"]],
    "image": bill["metadata"]["component"],
    "without_bytecode": [str(path) for path in ours if not compiled(path)],
    "sources": len(sources),
    "sources_compiled": sum(map(compiled, sources)),
    "programs": [str(path) for path in files if path.name in PROGRAMS],
    "privileged": [str(path) for path in files if path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)],
    "dependencies_bytes": sum(dependencies.values()),
    "left_out": [os.path.relpath(path, SITE) for path in dependencies if path not in there],
    "changed": {os.path.relpath(path, SITE): size - dependencies[path] for path, size in changed.items()},
    "tests": [str(path) for path in SITE.rglob("tests")],
}
sys.stdout.write(json.dumps(found))
