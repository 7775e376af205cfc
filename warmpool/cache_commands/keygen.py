"""`warmpool cache keygen FILE`: an Ed25519 key pair. Publishers sign with FILE, instances trust FILE.pub."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cache.signing import Signer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="where the private key goes; the public one is FILE.pub"
    )


def main(args: argparse.Namespace) -> int:
    """Write both halves to new files. Raises KeyFileError."""
    signer = Signer.generate()
    public = signer.write(args.file)
    found = {"private": str(args.file), "public": str(public), "key_id": signer.key_id}
    told = f"wrote {args.file} (keep it secret) and {public}\nkey id {signer.key_id}"
    print(json.dumps(found) if args.json else told)
    return 0
