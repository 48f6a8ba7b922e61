"""Invitations as text: what a member hands to somebody who may join, by mail or any other way.

An invitation is a signed Envelop that names the guest's key, so that nobody else can use it and it need not be kept
secret.
"""

from __future__ import annotations

import base64
import binascii

from aicpnode.envelop import signing
from aicpnode.envelop.codec import decode, encode
from aicpnode.envelop.kinds import invitation_envelop, parse_invitation
from aicpnode.errors import MalformedError, UserError
from aicpnode.identity import short
from consensus.messages import Invitation

PREFIX = "aicp-invitation-"
TEXT_CHARS_MAX = 1024


def write_invitation(invitation: Invitation, network_id: bytes) -> str:
    """One line of text."""
    return PREFIX + base64.urlsafe_b64encode(encode(invitation_envelop(invitation, network_id))).decode().rstrip("=")


def read_invitation(text: str, *, network_id: bytes, guest: bytes) -> Invitation:
    """The invitation in ``text``. UserError if it is damaged, for another run or for another key."""
    advice = "Ask a member for: aicp-node invite KEY, with the key that aicp-node key show prints here."
    body = text.strip().removeprefix(PREFIX)
    try:
        if len(body) > TEXT_CHARS_MAX:
            raise MalformedError("too long")
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        envelop, _attachment = decode(raw)
        invitation = parse_invitation(envelop)
    except (MalformedError, binascii.Error, ValueError) as error:
        raise UserError("That is no invitation, or it was damaged on its way.", advice=advice) from error
    if envelop.network_id != network_id:
        text = f"The invitation is for the network {short(envelop.network_id)}, this is {short(network_id)}."
        raise UserError(text, advice=advice)
    if invitation.guest != guest:
        text = f"The invitation is for the key {short(invitation.guest)}, this node's is {short(guest)}."
        raise UserError(text, advice=advice)
    if not signing.verify(envelop):
        raise UserError("The invitation's signature is not good.", advice=advice)
    return invitation
