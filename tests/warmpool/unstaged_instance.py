"""`warmpool`, as a process whose lanes get no batch beside the one that they run: what comes meanwhile waits."""

from __future__ import annotations

import sys

from tests.patient_instance import be_patient
from warmpool import cli, sent_batches

if __name__ == "__main__":
    be_patient()
    sent_batches.STAGED_US_MAX = -1.0  # else it depends on what batches took before
    sys.exit(cli.main())
