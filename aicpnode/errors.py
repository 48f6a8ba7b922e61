"""Errors by whose fault they are: the user's, a peer's, or ours.

* ``UserError``: the person at the keyboard can mend it; it says what happened, where, and what to do.
* ``RemoteError``: a peer did it; it costs that peer a penalty and never stops this node.
* Our own faults are assertions: they stop the node loudly and are not classes here.
"""

from __future__ import annotations

PENALTY_MALFORMED = 50
PENALTY_MISBEHAVED = 20


class AicpError(Exception):
    """Base of all errors that this project raises on purpose."""


class UserError(AicpError):
    """What the user can mend. ``advice`` is one sentence that says how."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()


class NotAvailableYet(UserError):
    """A named part that is not built yet: refused, never pretended."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: not available yet.")


class RemoteError(AicpError):
    """A peer's fault. ``penalty`` is subtracted from the peer's local score (0 to 100)."""

    def __init__(self, reason: str, *, penalty: int = PENALTY_MISBEHAVED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.penalty = penalty


class MalformedError(RemoteError):
    """Bytes that no honest peer sends: wrong length, not canonical, out of range."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, penalty=PENALTY_MALFORMED)
