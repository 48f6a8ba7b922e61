"""Names and reasons hold what people can see, the same for every interpreter."""

from __future__ import annotations

import pytest

from consensus.text import is_plain_text


@pytest.mark.parametrize("text", ["", "node 1", "Zoë", "节点", "узел", "😀", "\U0001fae8", "\u0378", "e\u0301"])
def test_text_that_people_see_is_plain_also_where_it_is_newer_than_the_interpreter(text: str) -> None:
    assert is_plain_text(text)


UNSEEN = "\n\x00\x1b\x7f\x9b\xa0\xad\u061c\u180e\u200b\u200d\u200f\u2028"
UNSEEN += "\u202e\u2066\u2069\u3000\ud800\ue000\ufeff\ufffb\U000e0041"


@pytest.mark.parametrize("character", list(UNSEEN), ids=ascii)
def test_controls_marks_and_private_characters_are_not(character: str) -> None:
    assert not is_plain_text(f"a{character}b")
