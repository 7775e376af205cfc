"""A checkout of what is tested, for a guide to change: with an origin of its own, so that nothing gets out of it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PERSON = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A Reader"), ("EMAIL", "reader@example.com"))
}


def checked_out(folder: Path, environment: dict[str, str]) -> Path:
    """Make one in a folder that is not there yet, of the files as they are, committed.

    Args:
        folder: Gets `checkout` and `origin.git`.
        environment: Of git; PERSON has to be in it.
    """

    def git(*words: str | Path, at: Path) -> str:
        command = ["git", *map(str, words)]
        return subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=True).stdout

    made, origin = folder / "checkout", folder / "origin.git"
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard", at=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another test's, and gone by now
                shutil.copy2(ROOT / name, made / name, follow_symlinks=False)
    git("init", "--quiet", "--initial-branch=main", at=made)
    git("config", "commit.gpgSign", "false", at=made)
    git("add", "--all", "--force", at=made)
    git("commit", "--quiet", "--message=As it is", at=made)
    git("clone", "--quiet", "--bare", made, origin, at=folder)
    git("remote", "add", "origin", origin, at=made)
    return made
