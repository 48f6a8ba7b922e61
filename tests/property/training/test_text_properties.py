from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aicpnode.training.data import Text


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.data())
def test_windows_are_those_of_the_joined_text(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    text = Text([np.frombuffer(part, dtype=np.uint8) for part in parts])
    assert len(text) == len(whole)
    if whole:
        offset = data.draw(st.integers(0, len(whole) - 1))
        length = data.draw(st.integers(1, len(whole) - offset))
        assert text.window(offset, length).tobytes() == whole[offset : offset + length]
