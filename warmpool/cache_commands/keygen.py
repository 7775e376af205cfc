"""`warmpool cache keygen FILE`: an Ed25519 key pair. Publishers sign with FILE, instances trust FILE.pub.

With `--encryption` it is a key that both encrypt and decrypt with instead.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cache.data_keys import FileKey
from cache.signing import Signer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="where the private key goes; the public one is FILE.pub"
    )
    parser.add_argument("--encryption", action="store_true", help="make a key that encrypts what is stored instead")


def main(args: argparse.Namespace) -> int:
    """Write both halves, or the key that encrypts, to new files. Raises KeyFileError."""
    if args.encryption:
        key = FileKey.write(args.file)
        told = f"wrote {args.file} (keep it secret, and keep it: without it nothing can be decrypted)\nkey {key.name}"
        print(json.dumps({"encryption": str(args.file), "key": key.name}) if args.json else told)
        return 0
    signer = Signer.generate()
    public = signer.write(args.file)
    found = {"private": str(args.file), "public": str(public), "key_id": signer.key_id}
    told = f"wrote {args.file} (keep it secret) and {public}\nkey id {signer.key_id}"
    print(json.dumps(found) if args.json else told)
    return 0
