"""Which messages are recorded at all: well-formed, by somebody who may say them, with their attachment (section 2).

What is refused here leaves no trace, so that a message that a relay stripped of its attachment does not take the slot
of the whole one.
"""

from __future__ import annotations

from collections.abc import Callable

from consensus.blocks import ballot_is_well_formed
from consensus.messages import (
    ENTRIES_PER_AUTHOR_MAX,
    JOINS_PER_BLOCK_MAX,
    Ballot,
    Crypto,
    Prepare,
    PrepareCert,
    SetMessage,
    Vote,
    block_binds,
)
from consensus.types import NIL, NO_VIEW, MemberStatus, Roster

Proves = Callable[[PrepareCert | None, int, bytes], bool]
"""Whether a certificate holds and is that of (view, block id)."""


def may_be_kept(message: Vote, roster: Roster, crypto: Crypto) -> bool:
    """What can be told of a message of the next height by the present roster: a stripped or bloated one is not kept."""
    member = roster.by_key(message.signer)
    if member is None or not (member.index in roster.authors or member.power or isinstance(message, Ballot)):
        return False  # who left or failed its probation does not vote at the next height
    if isinstance(message, SetMessage) and message.valid_view == NO_VIEW:
        block = message.block
        return block is not None and block_binds(crypto, block, message.block_id)
    if isinstance(message, SetMessage):
        return message.certificate is not None
    if isinstance(message, Ballot):
        return len(message.entries) <= ENTRIES_PER_AUTHOR_MAX * (len(roster.authors) + JOINS_PER_BLOCK_MAX)
    return True


def is_admissible(message: Vote, roster: Roster, crypto: Crypto, proves: Proves) -> bool:
    """Whether a message of the running height, whose roster is ``roster``, is recorded."""
    member = roster.by_key(message.signer)
    if member is None or member.status is MemberStatus.BANNED:
        return False
    if isinstance(message, Ballot):
        return _ballot_is_admissible(message, roster, proves)
    if not roster.is_active(message.signer):
        return False
    if isinstance(message, SetMessage):
        return _set_is_admissible(message, roster, crypto, proves)
    if isinstance(message, Prepare):
        return NO_VIEW <= message.valid_view < message.view and (
            message.block_id != NIL or message.valid_view == NO_VIEW
        )
    return True


def _ballot_is_admissible(ballot: Ballot, roster: Roster, proves: Proves) -> bool:
    if not ballot_is_well_formed(ballot, roster):
        return False
    if not roster.is_active(ballot.signer):
        return not ballot.ready and not ballot.entries and ballot.valid_view == NO_VIEW
    if ballot.valid_view == NO_VIEW:
        return True
    return ballot.valid_view < ballot.view and proves(ballot.certificate, ballot.valid_view, ballot.valid_id)


def _set_is_admissible(message: SetMessage, roster: Roster, crypto: Crypto, proves: Proves) -> bool:
    if roster.leader(message.height, message.view).key != message.signer:
        return False
    if message.valid_view == NO_VIEW:
        block = message.block
        return block is not None and block.height == message.height and block_binds(crypto, block, message.block_id)
    return 0 <= message.valid_view < message.view and proves(message.certificate, message.valid_view, message.block_id)
