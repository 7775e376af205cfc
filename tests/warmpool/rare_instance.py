"""`warmpool`, as a process: it never looks at its store by itself again once it has begun."""

from __future__ import annotations

import sys

from warmpool import cli, version_following

if __name__ == "__main__":
    version_following.LOOK_NEAR_S = 3600.0
    sys.exit(cli.main())
