"""Plans with experts in host memory keep the laws of queues, whatever their step takes."""

from __future__ import annotations

import pytest

from glmplan.plan import Words, fit_answer

INPUT, OUTPUT = 4096, 64


def rows(users: str):
    """Users → their row, on eight cards in a host whose memory is known."""
    words = Words("deepseek-v3", "genoa-2s-direct-8", engine="ktransformers", users=users, input=str(INPUT),
                  output=str(OUTPUT))  # fmt: skip
    return {row.users: row for row in fit_answer(words).users}


@pytest.fixture(scope="module")
def found():
    return rows("1,2,8,32,256,512")


def test_a_user_who_finds_no_place_waits_for_one(found):
    """Little: with no pauses, users are requests in flight, which is the rate of answers times what each takes."""
    few, many = found[256], found[512]
    assert few.running == many.running < 256
    answers = many.total_rate.value / OUTPUT
    assert many.ttft.value - few.ttft.value == pytest.approx((512 - 256) / answers, rel=0.2)
    # of one who has a place the answer takes no longer
    assert many.tpot.value == pytest.approx(few.tpot.value, rel=0.05)


def test_prompts_are_not_read_faster_than_one_after_the_other(found):
    """Utilisation: one user alone waits for nothing but its own prompt; prompts cannot take more than all the time."""
    reading = found[1].ttft.value
    for row in found.values():
        assert row.total_rate.value / OUTPUT * reading < 1.02


def test_answers_wait_while_the_prompts_of_others_are_read(found):
    alone, reading = found[1], found[1].ttft.value
    for users in (2, 8, 32):
        # during an answer each of the others asks again once
        waits = (users - 1) * reading / OUTPUT
        assert found[users].tpot.value > alone.tpot.value + 0.9 * waits
