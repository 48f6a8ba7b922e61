"""Which texts may stand in the ledger: names and reasons, shown to people as they are.

The table is part of the protocol. Python's own ``isprintable`` follows the Unicode version of the interpreter, and
members with different ones would not agree on which blocks can be read. Characters that no version has assigned are
let through for the same reason.
"""

from __future__ import annotations

_UNSEEN = (
    (0x0000, 0x001F), (0x007F, 0x00A0), (0x00AD, 0x00AD), (0x0600, 0x0605), (0x061C, 0x061C), (0x06DD, 0x06DD),
    (0x070F, 0x070F), (0x0890, 0x0891), (0x08E2, 0x08E2), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200F),
    (0x2028, 0x202F), (0x205F, 0x206F), (0x3000, 0x3000), (0xD800, 0xF8FF), (0xFEFF, 0xFEFF), (0xFFF0, 0xFFFB),
    (0xFFFE, 0xFFFF), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A), (0xE0000, 0x10FFFF),
)  # fmt: skip
"""Controls, format and bidirectional marks, separators and spaces other than the plain one, surrogates, private use:
first and last of each range."""


def is_plain_text(text: str) -> bool:
    """Whether each character is one that people see, or a plain space."""
    return not any(first <= ord(character) <= last for character in text for first, last in _UNSEEN)
