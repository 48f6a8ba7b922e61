from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aicpnode.training.batching import batch_offsets

NUMBERS = st.integers(0, 2**63 - 1)


@given(st.binary(min_size=32, max_size=32), NUMBERS, NUMBERS, NUMBERS, st.integers(1, 64), st.integers(1, 2**48 - 1))
def test_offsets_lie_inside_the_text_and_repeat(
    network_id: bytes, round_number: int, author_index: int, step: int, batch_size: int, positions: int
) -> None:
    def draw() -> list[int]:
        found: list[int] = batch_offsets(
            network_id=network_id,
            round_number=round_number,
            author_index=author_index,
            step=step,
            batch_size=batch_size,
            positions=positions,
        ).tolist()
        return found

    offsets = draw()
    assert len(offsets) == batch_size
    assert all(0 <= offset < positions for offset in offsets)
    assert offsets == draw()
