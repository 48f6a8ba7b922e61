"""Twins (arXiv:2004.10617): members that run twice under one key, on a network that an adversary cuts as it likes.

A twinned key equivocates without a line of hostile code: both of its instances are production replicas that do not
know of each other. What the adversary chooses is who hears whom, for every height, view and kind of message
(``schedule``); ``table`` plays it on production replicas without random delays, ``laws`` holds what must be true
whatever was chosen, ``search`` looks at many seeds. After the schedule everything heals and all others must decide.
"""

from __future__ import annotations

from aicpnode.simulation.twins.schedule import Schedule, divide, draw
from aicpnode.simulation.twins.table import Outcome, Seen, Table, play, play_twins

__all__ = ["Outcome", "Schedule", "Seen", "Table", "divide", "draw", "play", "play_twins"]
