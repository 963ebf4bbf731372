"""Decides which tokens run in the next step. Queues and page counts only: no tensors.

First come, first served: everything running is older than everything waiting.

- A sequence is admitted when all its tokens and one page more fit beside what the running
  ones still need for theirs, so that a new prompt does not push out the one before it.
- Decodes run every step. Prompts are cut into chunks; while others decode, into short ones.
- When pages run out the newest running sequence goes back to the head of the queue and is
  computed again later. The oldest is never pushed out, so something always advances.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aotlm.engine.batch import Chunk, StepPlan

if TYPE_CHECKING:
    from aotlm.cache.page_budget import PageBudget
    from aotlm.engine.sequence import Sequence


class Scheduler:
    """`pages` is read, never changed: the engine carries the plan out.

    `prefill_chunk`: prompt tokens in a step; `busy_prefill_tokens`: the same while other
    sequences decode.
    """

    def __init__(
        self,
        pages: PageBudget,
        *,
        max_batch_size: int,
        prefill_chunk: int,
        busy_prefill_tokens: int,
    ) -> None:
        self._pages = pages
        self._max_batch_size = max_batch_size
        self._prefill_chunk = prefill_chunk
        self._busy_prefill_tokens = min(busy_prefill_tokens, prefill_chunk)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is. Its pages are the engine's business."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def clear(self) -> None:
        self.running.clear()
        self.waiting.clear()

    def schedule(self) -> StepPlan:
        """Plan the next step and move the sequences between the queues accordingly."""
        plan = StepPlan()
        busy = any(sequence.is_decoding for sequence in self.running)
        room = self._busy_prefill_tokens if busy else self._prefill_chunk
        free, room = self._continue_running(plan, room)
        if not plan.preempted:
            self._admit(plan, free, room)
        return plan

    def check_integrity(self) -> None:
        """Raises AssertionError when queues and pages contradict each other."""
        assert len(self.running) <= self._max_batch_size
        cached = {sequence.seq_id for sequence in self.running}
        assert len(cached) == len(self.running), "two running sequences share an id"
        assert cached == set(self._pages.sequences), "running and cached sequences differ"
        for sequence in self.running:
            assert sequence.num_cached == self._pages.length(sequence.seq_id)
            assert sequence.uncached > 0
        for sequence in self.waiting:
            assert sequence.num_cached == 0
            assert sequence.seq_id == -1

    def _continue_running(self, plan: StepPlan, room: int) -> tuple[int, int]:
        """Plan what is running, oldest first. Returns free pages and prefill room left."""
        free = self._pages.free
        for sequence in tuple(self.running):
            if sequence in plan.preempted:
                break  # the newest were pushed out: so are all that follow
            length = 1 if sequence.is_decoding else min(sequence.uncached, room)
            if length == 0:
                continue
            needed = self._pages.pages_to_append(sequence.seq_id, length)
            while needed > free and self.running[-1] is not sequence:
                free += self._preempt_newest(plan)
            if needed > free and len(self.running) == 1:
                self.running.clear()
                plan.exhausted.append(sequence)
                free += self._pages.pages_freed_by_remove(sequence.seq_id)
            elif needed > free:
                free += self._preempt_newest(plan)
            else:
                free -= needed
                room -= self._plan_chunk(plan, Chunk(sequence, length))
        return free, room

    def _plan_chunk(self, plan: StepPlan, chunk: Chunk) -> int:
        """Returns the prefill room it takes."""
        if chunk.sequence.is_decoding:
            plan.decodes.append(chunk)
            return 0
        plan.prefills.append(chunk)
        return chunk.length

    def _preempt_newest(self, plan: StepPlan) -> int:
        """Returns the pages it frees."""
        victim = self.running.pop()
        self.waiting.appendleft(victim)
        plan.preempted.append(victim)
        return self._pages.pages_freed_by_remove(victim.seq_id)

    def _admit(self, plan: StepPlan, free: int, room: int) -> None:
        available = free - self._promised(plan)
        while self.waiting and len(self.running) < self._max_batch_size:
            sequence = self.waiting[0]
            needed = self._pages.pages_for(len(sequence.tokens))
            if needed > self._pages.num_pages:
                plan.exhausted.append(self.waiting.popleft())
                continue
            spare = 1 if self.running else 0
            if room == 0 or needed + spare > available:
                break
            available -= needed
            self.running.append(self.waiting.popleft())
            plan.admitted.append(sequence)
            chunk = Chunk(sequence, min(len(sequence.tokens), room))
            room -= chunk.length
            plan.prefills.append(chunk)

    def _promised(self, plan: StepPlan) -> int:
        """Pages that running prompts will need after this step's chunks."""
        total = sum(
            self._pages.pages_to_append(sequence.seq_id, sequence.uncached)
            for sequence in self.running
        )
        planned = sum(
            self._pages.pages_to_append(chunk.sequence.seq_id, chunk.length)
            for chunk in (*plan.decodes, *plan.prefills)
        )
        return total - planned
