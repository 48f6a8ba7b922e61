"""Claims are hints: whoever lies about its height costs one request, not the catching up."""

from consensus.catchup import RETRY_MAX_MS, STRANGERS_KEPT, CatchUp

ME, A, B, LIAR = (letter * 32 for letter in (b"m", b"a", b"b", b"l"))


def stranger(number: int) -> bytes:
    return b"s" + number.to_bytes(31, "big")


def test_first_claim_ahead_asks_for_a_request_once() -> None:
    catchup = CatchUp(ME)
    assert not catchup.heard(A, 4, 5, is_member=True), "height 4 is decided here"
    assert catchup.heard(A, 5, 5, is_member=True)
    assert not catchup.heard(B, 7, 5, is_member=True), "a request is under way"
    assert set(catchup.ahead(5)) == {A, B}


def test_own_claims_are_ignored() -> None:
    catchup = CatchUp(ME)
    assert not catchup.heard(ME, 100, 1, is_member=True)
    assert catchup.ahead(1) == []


def test_claims_never_fall() -> None:
    catchup = CatchUp(ME)
    catchup.heard(A, 9, 5, is_member=True)
    catchup.heard(A, 2, 5, is_member=True)
    assert catchup.ahead(9) == [A]


def test_each_of_those_ahead_is_asked_once_then_their_claims_are_forgotten() -> None:
    catchup = CatchUp(ME)
    catchup.heard(A, 6, 5, is_member=True)
    catchup.heard(B, 9, 5, is_member=True)
    assert [catchup.next_target(5) for _ in range(3)] == [B, A, B]
    assert catchup.next_target(5) is None
    assert catchup.heard(A, 6, 5, is_member=True), "a repeated claim is believed again"


def test_donor_that_served_is_asked_before_the_liar_that_claims_more() -> None:
    catchup = CatchUp(ME)
    catchup.heard(LIAR, 1 << 62, 1, is_member=False)
    catchup.heard(A, 200, 1, is_member=True)
    assert catchup.next_target(1) == A, "members first"
    catchup.served()
    catchup.progressed()
    assert catchup.next_target(65) == A


def test_lying_member_is_asked_once_and_not_after_every_answer() -> None:
    catchup = CatchUp(ME)
    catchup.heard(LIAR, 1 << 62, 1, is_member=True)
    catchup.heard(A, 200, 1, is_member=True)
    assert [catchup.next_target(1), catchup.next_target(1)] == [LIAR, A]
    for height in range(64, 200, 64):
        catchup.served()
        catchup.progressed()
        assert catchup.next_target(height) == A


def test_liar_that_answers_now_and_then_is_not_asked_first_again() -> None:
    """One decision made it the donor, and its claim, never reached, kept it first after every answer of others."""
    catchup = CatchUp(ME)
    catchup.heard(LIAR, 1 << 62, 1, is_member=True)
    catchup.heard(A, 200, 1, is_member=True)
    assert catchup.next_target(1) == LIAR
    catchup.served()
    catchup.progressed()
    assert [catchup.next_target(2), catchup.next_target(2)] == [LIAR, A], "the donor kept its answer back"
    catchup.served()
    catchup.progressed()
    assert catchup.next_target(18) == A
    catchup.heard(B, 300, 18, is_member=True)
    assert catchup.next_target(201) == B, "whoever was never asked in vain comes before a liar, whatever that claims"


def test_strangers_cannot_crowd_out_members() -> None:
    catchup = CatchUp(ME)
    for number in range(10 * STRANGERS_KEPT):
        catchup.heard(stranger(number), 1 << 62, 1, is_member=False)
    assert len(catchup.ahead(1)) == STRANGERS_KEPT
    catchup.heard(A, 3, 1, is_member=True)
    assert A in catchup.ahead(1)
    assert catchup.next_target(1) == A


def test_stranger_that_is_further_takes_the_place_of_the_last_one() -> None:
    catchup = CatchUp(ME)
    for number in range(STRANGERS_KEPT):
        catchup.heard(stranger(number), 3, 10, is_member=False)
    catchup.heard(stranger(1000), 3, 10, is_member=False)
    assert stranger(1000) not in catchup.ahead(3)
    assert catchup.heard(stranger(1001), 50, 10, is_member=False)
    assert catchup.ahead(10) == [stranger(1001)]


def test_retries_back_off_until_progress() -> None:
    catchup = CatchUp(ME)
    waits = []
    for number in range(12):
        catchup.heard(stranger(number), 9, 1, is_member=False)
        catchup.next_target(1)
        waits.append(catchup.retry_ms(100))
    assert waits[:4] == [200, 400, 800, 1600]
    assert waits[-1] == RETRY_MAX_MS
    catchup.progressed()
    assert catchup.retry_ms(100) == 100
