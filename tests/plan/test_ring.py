"""The ring all-reduce, step by step."""

import pytest

from pdtlib.plan.comm import sent_bytes
from pdtlib.plan.ring import holdings, num_steps, transfers

RANKS = range(2, 10)


@pytest.mark.parametrize("ranks", RANKS)
def test_every_rank_ends_with_every_contribution(ranks):
    assert holdings(ranks, num_steps(ranks)) == [[frozenset(range(ranks))] * ranks] * ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_after_the_reduce_scatter_each_rank_owns_one_whole_chunk(ranks):
    whole = [
        [chunk for chunk, ranks_in in enumerate(row) if len(ranks_in) == ranks]
        for row in holdings(ranks, ranks - 1)
    ]
    assert sorted(whole) == [[chunk] for chunk in range(ranks)]


@pytest.mark.parametrize("ranks", RANKS)
def test_each_rank_sends_one_chunk_to_its_neighbour_in_each_step(ranks):
    sent = 0
    for step in range(num_steps(ranks)):
        moves = transfers(ranks, step)
        assert [move.sender for move in moves] == list(range(ranks))
        assert [move.receiver for move in moves] == [*range(1, ranks), 0]
        assert len({move.chunk for move in moves}) == ranks
        sent += 1
    assert sent / ranks == sent_bytes("all_reduce", 1.0, ranks)


def test_dropping_a_step_leaves_a_sum_incomplete():
    assert holdings(4, num_steps(4) - 1) != holdings(4, num_steps(4))


def test_a_step_outside_the_exchange_is_refused():
    with pytest.raises(ValueError, match="valid: 0 to 5 for 4 ranks"):
        transfers(4, 6)
