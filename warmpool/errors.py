"""The errors of the service, in one place and one tree, so that each says what its receiver may do next.

    WarmpoolError
    ├── RequestError            the request is at fault: change it, the same one fails again
    │   ├── BadInput            a field of the request: the message names it, what came and what is allowed
    │   ├── NotFound            no such model, version, method or tensor
    │   └── TooLarge            more bytes or elements than the service takes
    ├── RetryLater              nothing is wrong with the request: send it again after `retry_after_s`
    │   ├── Overloaded          shed to protect the requests already accepted
    │   ├── NotWarm             no warm executable covers it yet, or its model is not ready
    │   └── PoolUnavailable     (client) no endpoint of the pool answered
    ├── Abandoned               the caller's time or interest ran out: there is no one to answer
    │   ├── DeadlineExceeded
    │   └── Cancelled
    ├── LaneFailed              accepted, ran twice, failed twice: another instance may do better
    ├── DeclarationError        a model's author: change the declaration as the message says
    └── PublishError            a publish stopped; what is served is unchanged, publish again after a fix
        └── ProofFailed         the model does not keep a promise that serving relies on

Statuses of HTTP and gRPC belong to the files that speak these protocols. This file imports nothing, so that a
function's cold start and a model's declaration can afford it.
"""

RETRY_AFTER_S_DEFAULT = 1.0
SHOWN_CHARACTERS_MAX = 80


class WarmpoolError(Exception):
    """Base of every error that the service raises on purpose."""


class RequestError(WarmpoolError):
    """The request is at fault. Do not retry it unchanged."""


class BadInput(RequestError):
    """A field of the request is wrong. Change it as the message says."""

    @classmethod
    def about(cls, field: str, came: object, allowed: str) -> "BadInput":
        """Make the error for one field.

        Args:
            field: Where it is, as the caller wrote it: `inputs[0].shape`.
            came: What came; shown cut to 80 characters.
            allowed: What would have been accepted.
        """
        return cls(f"{field}: got {shown(came)}; allowed: {allowed}")


class NotFound(RequestError):
    """The named model, version, method or tensor does not exist here. Ask for another."""


class TooLarge(RequestError):
    """The request or its answer exceeds a size limit. Send less at a time."""


class RetryLater(WarmpoolError):
    """The same request may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = RETRY_AFTER_S_DEFAULT) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @property
    def retry_after(self) -> str:
        """The value of Retry-After: whole seconds, rounded up, since who comes early is refused again; at least 1."""
        return str(max(1, int(-(-self.retry_after_s // 1))))


class Overloaded(RetryLater):
    """Refused before any work was done, because too much is waiting. Retry later or elsewhere."""


class NotWarm(RetryLater):
    """No warm executable covers the request yet. Retry later or elsewhere."""


class PoolUnavailable(RetryLater):
    """No endpoint of the pool gave a usable answer. Retry later; if it lasts, look at the pool."""


class Abandoned(WarmpoolError):
    """The answer would have no reader any more."""


class DeadlineExceeded(Abandoned):
    """The caller's time ran out. Retry with more time, or with less work."""


class Cancelled(Abandoned):
    """The caller went away. Nothing to do."""


class LaneFailed(WarmpoolError):
    """The request was run twice and failed both times. Retry on another instance; the cause is in the log."""


class DeclarationError(WarmpoolError):
    """A model's declaration is wrong. The message names model, method, input or dimension, and what to change."""


class PublishError(WarmpoolError):
    """A publish could not be completed. Nothing that is served has changed."""


class ProofFailed(PublishError):
    """The model broke a promise that serving relies on (padding, batching). Change the model or its declaration."""


def printable(text: object) -> str:
    """The text, whole and on one line, with what a terminal would act on written as Python escapes it.

    What comes out of a store or from another machine may have been written by anybody who can write there.
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(text))


def shown(value: object) -> str:
    """Return `value` as an error message shows it: its repr, cut to a bounded length."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 1] + "…"
