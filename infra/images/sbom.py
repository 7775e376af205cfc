"""Write what an image holds, as CycloneDX: the packages of Python, with their licences, and those of Debian.

Runs in the build, on the root file system that becomes the image, with the tools beside this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from email import message_from_string
from pathlib import Path
from typing import Any
from urllib.parse import quote

TOOLS = Path(__file__).with_name("tools")
DEBIAN = Path("/var/lib/dpkg/status.d")
MADE_OF = ("SOURCE", "REVISION", "BASE")


def debian(status: Path) -> dict[str, Any]:
    """The component that a package of Debian is, from what dpkg says of it."""
    fields = message_from_string(status.read_text(encoding="utf-8"))
    name, version = fields["Package"], fields["Version"]
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={fields['Architecture']}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def image(title: str) -> dict[str, Any]:
    """The component that the image is, from the build's arguments."""
    made_of = [{"name": f"warmpool:{name}", "value": os.environ[name]} for name in MADE_OF]
    about = {"type": "container", "bom-ref": "image", "name": title}
    return {**about, "version": os.environ["VERSION"], "properties": made_of}


def main(environment: str, output: str, title: str) -> None:
    """Write it.

    Args:
        environment: The virtual environment.
        output: File to write.
        title: Of the image.
    """
    tool = (
        f"import runpy, sys; sys.path.insert(0, {str(TOOLS)!r}); runpy.run_module('cyclonedx_py', run_name='__main__')"
    )
    # The tools' folder is not in PYTHONPATH, or they would be found in the environment, too. What they write is not all
    # of the bill yet, so that they need not read it again.
    options = ("--no-validate", "--output-reproducible", f"{environment}/bin/python")
    command = [sys.executable, "-B", "-c", tool, "environment", *options]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    found["metadata"]["component"] = image(title)
    found["components"] += [debian(path) for path in sorted(DEBIAN.iterdir())]
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    Path(output).write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
