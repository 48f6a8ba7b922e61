"""The composition root: one node, put together from the rooms below and taken apart in order."""

from aicpnode.node.node import Node

__all__ = ["Node"]
