"""What strangers may be told of an error says what to do, and not where anything is."""

from __future__ import annotations

import errno
import os

import pytest

from cache.errors import Damaged, NotStored, StoreUnavailable, told

AWAY = "the store cannot be read or written now; the log says why"
PLACE = "/srv/secret/place"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreUnavailable(f"no copy of it can be kept in {PLACE}"), AWAY),
        (StoreUnavailable("encryption_key gcp-kms://projects/p/locations/l/keyRings/r/cryptoKeys/k: no"), AWAY),
        (StoreUnavailable(f"{PLACE} was moved", told="it was moved"), "it was moved"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES), PLACE), "Permission denied"),
        (OSError(PLACE), "it cannot be read"),
        (NotStored("executables/k"), "nothing is stored under 'executables/k'"),
        (Damaged("artifact k", "it is torn"), "artifact k is damaged: it is torn"),
    ],
)
def test_where_a_store_is_stays_in_the_log(error, said):
    assert told(error) == said
