from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotlm.cache.page_budget import PageBudget
from aotlm.errors import EngineError


def test_counts_whole_pages() -> None:
    pages = PageBudget(10, 16)
    pages.add(1)
    pages.append(1, 16)
    assert pages.free == 9
    assert pages.pages_to_append(1, 1) == 1
    pages.append(1, 1)
    assert pages.free == 8
    assert pages.pages_to_append(1, 15) == 0
    assert pages.length(1) == 17


def test_a_fork_shares_full_pages_and_copies_the_cut_one() -> None:
    pages = PageBudget(10, 16)
    pages.add(1)
    pages.append(1, 44)
    pages.fork(1, 2, 36)
    assert pages.free == 10 - 3 - 1
    assert pages.pages_freed_by_remove(1) == 1
    pages.remove(1)
    assert pages.free == 10 - 3
    pages.remove(2)
    assert pages.free == 10
    pages.check_integrity()


def test_a_fork_at_a_page_border_takes_nothing() -> None:
    pages = PageBudget(2, 16)
    pages.add(1)
    pages.append(1, 32)
    pages.fork(1, 2, 16)
    pages.fork(1, 3, 0)
    assert pages.free == 0
    assert pages.length(3) == 0


def test_popping_into_a_shared_page_copies_it() -> None:
    pages = PageBudget(4, 16)
    pages.add(1)
    pages.append(1, 32)
    pages.fork(1, 2, 32)
    pages.pop(2, 4)
    assert pages.free == 1
    pages.check_integrity()


def test_popping_into_a_shared_page_needs_a_free_one() -> None:
    pages = PageBudget(2, 16)
    pages.add(1)
    pages.append(1, 32)
    pages.fork(1, 2, 32)
    with pytest.raises(EngineError, match="1 pages needed to drop 4 tokens"):
        pages.pop(2, 4)
    assert pages.length(2) == 32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.add(1), "there is a sequence 1 already"),
        (lambda p: p.add(-1), "must not be negative"),
        (lambda p: p.remove(9), "there is no sequence 9"),
        (lambda p: p.append(9, 1), "there is no sequence 9"),
        (lambda p: p.append(1, 100), "6 pages needed to append 100 tokens to sequence 1, 3 of 4"),
        (lambda p: p.fork(1, 1, 0), "there is a sequence 1 already"),
        (lambda p: p.fork(1, 2, 11), "cannot fork sequence 1 at 11, it holds 10 tokens"),
        (lambda p: p.pop(1, 11), "cannot drop 11 tokens of sequence 1, it holds 10"),
    ],
)
def test_what_cannot_be_granted_raises_and_changes_nothing(call: object, message: str) -> None:
    pages = PageBudget(4, 16)
    pages.add(1)
    pages.append(1, 10)
    assert callable(call)
    with pytest.raises(EngineError, match=message):
        call(pages)
    assert (pages.free, pages.sequences, pages.length(1)) == (3, (1,), 10)
    pages.check_integrity()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 60)), max_size=60))
def test_random_traces_keep_the_counts_right(trace: list[tuple[int, int, int]]) -> None:
    pages = PageBudget(12, 8)
    lengths: dict[int, int] = {}
    for kind, seq_id, number in trace:
        before = (pages.free, dict(lengths))
        try:
            if kind == 0:
                pages.add(seq_id)
                lengths[seq_id] = 0
            elif kind == 1:
                pages.append(seq_id, number)
                lengths[seq_id] += number
            elif kind == 2:
                pages.fork(number % 6, seq_id, number // 2)
                lengths[seq_id] = number // 2
            elif kind == 3:
                pages.pop(seq_id, number // 2)
                lengths[seq_id] -= number // 2
            else:
                pages.remove(seq_id)
                del lengths[seq_id]
        except EngineError:
            assert before == (pages.free, lengths)
        pages.check_integrity()
        assert {seq_id: pages.length(seq_id) for seq_id in pages.sequences} == lengths
    for seq_id in list(lengths):
        pages.remove(seq_id)
    assert pages.free == 12
