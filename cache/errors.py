"""What can go wrong with a cache entry, by what the caller may do about it.

CacheError
├── NotStored        nothing is stored under this path: make it
├── Damaged          the bytes are not what was stored: set them aside, make it again
├── Untrusted        whole, but not signed by a key that is known here: refuse it, another reader may trust it
│   ├── Strange      somebody signed it whose key is not known here: do not replace it either
│   └── Discredited  its signature is false, or that of a distrusted key: set it aside, make it again
├── Foreign          whole, but made for another machine or program: look for another entry, or make one
├── Refused          XLA would not load or run it: treat it as damaged
├── OutOfMemory      the device had no room for it: ask for less, or make room
├── DeviceLost       this process can do nothing more on the device: end it, start another
├── CompileFailed    it was compiled and that failed: change the program or the machine, or ask for another try
├── NotMadeYet       another process of the fleet is still making it: wait longer
├── LeaseLost        another process does by now what this one held a lease for: both results are good
└── StoreUnavailable the store cannot be read or written now: keep what is warm, try again later
    └── Unreadable   this object cannot be read by this process, others can: name it, go on with the rest
"""


class CacheError(Exception):
    """Base of everything this package raises."""


class NotStored(CacheError):
    """Nothing is stored under this path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"nothing is stored under {path!r}")
        self.path = path


class Damaged(CacheError):
    """The bytes differ from what was stored."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} is damaged: {reason}")
        self.what = what
        self.reason = reason


class Untrusted(CacheError):
    """Whole, but nobody who is known here has signed it: that says as much of this reader as of the object."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} is not trusted: {reason}")
        self.what = what
        self.reason = reason


class Strange(Untrusted):
    """Somebody signed it whose key is not known here: it may be right for others, and is not ours to replace."""


class Discredited(Untrusted):
    """Its signature is not that of the key it names, or that key is distrusted: no reader should take it."""


class Foreign(CacheError):
    """A whole artifact of another machine, program or format; `differences` maps ingredient to (wanted, found)."""

    def __init__(self, what: str, differences: dict[str, tuple[str, str]]) -> None:
        shown = "; ".join(f"{name}: wanted {want!r}, found {got!r}" for name, (want, got) in differences.items())
        super().__init__(f"{what} was made for something else ({shown})")
        self.what = what
        self.shown = shown
        self.differences = differences


class Refused(CacheError):
    """XLA would not load or run a whole, matching executable."""


class OutOfMemory(CacheError):
    """The device had no room to load or run it, or for an array: nothing is wrong with either."""


class DeviceLost(CacheError):
    """Nothing that this process does on its device can succeed any more; that says nothing of the executable."""


class CompileFailed(CacheError):
    """A compile failed, here or on another machine of the fleet; `reason` is its error."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} failed to compile: {reason}")
        self.what = what
        self.reason = reason


class NotMadeYet(CacheError):
    """Another process of the fleet is still making an artifact."""

    def __init__(self, what: str, holder: str, waited_s: float) -> None:
        super().__init__(f"{what} is still being made by {holder or 'another process'} after {waited_s:g} s")
        self.what = what
        self.holder = holder


class LeaseLost(CacheError):
    """A lease is held by another process, or was removed."""

    def __init__(self, path: str) -> None:
        super().__init__(f"lease {path!r} was lost: another process has it by now, or it was removed")
        self.path = path


class StoreUnavailable(CacheError):
    """The store cannot be reached, read or written now.

    Args:
        message: Why, for who runs it: it may name folders, buckets and keys.
        told: What anybody may be told, see `told`.
    """

    def __init__(self, message: str, told: str = "the store cannot be read or written now; the log says why") -> None:
        super().__init__(message)
        self.told = told


class Unreadable(StoreUnavailable):
    """One object cannot be read here: there is no permission for it, or not the key. It may well be sound.

    Who asks for many goes on with the others; nobody replaces or removes it for that alone.
    """


def not_read(path: str, error: OSError) -> StoreUnavailable:
    """What it means that the file of an object cannot be read."""
    reason = f"{path!r}: {error.strerror or error}"
    if isinstance(error, PermissionError):
        return Unreadable(reason, told="there is no permission to read it")
    return StoreUnavailable(reason)


def told(error: Exception) -> str:
    """What may be told over a network to whoever asks: an error's own text may name folders and keys, for logs."""
    if isinstance(error, StoreUnavailable):
        return error.told
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    return str(error)
