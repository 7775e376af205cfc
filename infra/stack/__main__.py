"""`python -m infra.stack`."""

import sys

from infra.stack.command import main

sys.exit(main())
