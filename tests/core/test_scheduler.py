"""The scheduler with a page budget that follows its plans, and no model."""

from __future__ import annotations

from aotlm.cache.page_budget import PageBudget
from aotlm.engine.batch import StepPlan
from aotlm.engine.scheduler import Scheduler
from aotlm.engine.sequence import Sequence
from aotlm.request import Request


class Bench:
    """Carries plans out; every completed sequence gets a token, as from a sampler."""

    def __init__(
        self, *, num_pages: int = 100, batch: int = 4, chunk: int = 16, busy: int = 8
    ) -> None:
        self.pages = PageBudget(num_pages, 4)
        self.scheduler = Scheduler(
            self.pages, max_batch_size=batch, prefill_chunk=chunk, busy_prefill_tokens=busy
        )
        self._next = 0

    def add(self, name: str, tokens: int) -> Sequence:
        sequence = Sequence(Request(name, tuple(range(tokens))))
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        for sequence in (*plan.preempted, *plan.exhausted):
            if sequence.seq_id >= 0:
                self.pages.remove(sequence.seq_id)
            sequence.leave_cache()
        for sequence in plan.admitted:
            sequence.seq_id = self._next
            self._next += 1
            self.pages.add(sequence.seq_id)
        for chunk in (*plan.decodes, *plan.prefills):
            completes = chunk.completes
            self.pages.append(chunk.sequence.seq_id, chunk.length)
            chunk.sequence.num_cached += chunk.length
            if completes:
                chunk.sequence.tokens.append(0)
        self.scheduler.check_integrity()
        return plan


def names(sequences: list[Sequence]) -> list[str]:
    return [sequence.request.request_id for sequence in sequences]


def chunks(plan: StepPlan) -> list[tuple[str, int]]:
    return [(chunk.sequence.request.request_id, chunk.length) for chunk in plan.prefills]


def test_prompts_share_one_prefill_up_to_the_chunk() -> None:
    bench = Bench(chunk=16)
    for name, tokens in (("a", 6), ("b", 7), ("c", 9)):
        bench.add(name, tokens)
    assert chunks(bench.step()) == [("a", 6), ("b", 7), ("c", 3)]
    plan = bench.step()
    assert names([chunk.sequence for chunk in plan.decodes]) == ["a", "b"]
    assert chunks(plan) == [("c", 6)]


def test_while_others_decode_a_long_prompt_comes_in_short_chunks() -> None:
    bench = Bench(chunk=16, busy=3)
    bench.add("a", 2)
    bench.step()
    bench.add("long", 30)
    plan = bench.step()
    assert len(plan.decodes) == 1
    assert chunks(plan) == [("long", 3)]


def test_alone_a_long_prompt_takes_whole_chunks() -> None:
    bench = Bench(chunk=16, busy=3)
    bench.add("long", 40)
    assert [chunks(bench.step()) for _ in range(3)] == [
        [("long", 16)],
        [("long", 16)],
        [("long", 8)],
    ]


def test_the_batch_limit_holds_and_the_queue_keeps_its_order() -> None:
    bench = Bench(batch=2)
    sequences = [bench.add(name, 2) for name in "abc"]
    assert names(bench.step().admitted) == ["a", "b"]
    assert bench.step().admitted == []
    bench.scheduler.remove(sequences[0])
    bench.pages.remove(sequences[0].seq_id)
    assert names(bench.step().admitted) == ["c"]


def test_a_big_prompt_at_the_head_is_not_overtaken() -> None:
    bench = Bench(num_pages=6)
    bench.add("a", 8)  # 2 pages
    bench.step()
    bench.add("big", 16)  # 4 pages and one to spare do not fit beside it
    bench.add("small", 1)
    assert bench.step().admitted == []


def test_pages_promised_to_a_half_read_prompt_are_not_given_away() -> None:
    bench = Bench(num_pages=10, chunk=4)
    bench.add("half", 32)  # 8 pages, of which the first step takes one
    bench.step()
    bench.add("next", 8)
    assert bench.step().admitted == []


def test_when_pages_run_out_the_newest_goes_back_to_the_head_of_the_queue() -> None:
    bench = Bench(num_pages=4)
    old = bench.add("old", 7)
    new = bench.add("new", 3)
    bench.add("later", 3)
    bench.step()
    plan = StepPlan()
    while not plan.preempted:
        plan = bench.step()
    assert names(plan.preempted) == ["new"]
    assert names(bench.scheduler.running) == ["old"]
    assert names(list(bench.scheduler.waiting)) == ["new", "later"]
    assert old.num_cached > 0
    assert new.num_cached == 0


def test_the_last_one_standing_is_exhausted_when_the_cache_is_full() -> None:
    bench = Bench(num_pages=2)
    bench.add("a", 8)
    bench.step()
    plan = bench.step()
    assert names(plan.exhausted) == ["a"]
    assert bench.pages.free == 2
    assert not bench.scheduler.has_work


def test_what_waits_behind_an_exhausted_one_is_admitted_in_the_same_step() -> None:
    bench = Bench(num_pages=2, batch=1)
    bench.add("a", 8)
    bench.add("b", 4)
    bench.step()
    plan = bench.step()
    assert names(plan.exhausted) == ["a"]
    assert names(plan.admitted) == ["b"]


def test_a_sequence_larger_than_the_cache_ends_instead_of_blocking_the_queue() -> None:
    bench = Bench(num_pages=2)
    bench.add("huge", 9)
    bench.add("b", 4)
    plan = bench.step()
    assert names(plan.exhausted) == ["huge"]
    assert names(plan.admitted) == ["b"]
