"""What the scheduler tells the engine to do in one step: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aotlm.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `length` uncached tokens of one sequence."""

    sequence: Sequence
    length: int

    @property
    def completes(self) -> bool:
        """Whether the sequence's last token is in it, so that its logits are wanted."""
        return self.length == self.sequence.uncached


@dataclass(slots=True)
class StepPlan:
    """To be carried out in the order of the fields."""

    preempted: list[Sequence] = field(default_factory=list)  # leave the cache, wait again
    exhausted: list[Sequence] = field(default_factory=list)  # end: the whole cache is too small
    admitted: list[Sequence] = field(default_factory=list)  # enter the cache
    decodes: list[Chunk] = field(default_factory=list)  # one token each
    prefills: list[Chunk] = field(default_factory=list)
