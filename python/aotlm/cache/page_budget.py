"""Which cached tokens take which pages: counting only, no tensors.

Follows TVM's paged cache exactly, so that every question ("does this fit?") is answered
before TVM is asked, where the answer would be a crash of the batch.

    sequence A   |page 3........|page 7........|page 1....     |     44 tokens, 16 a page
    sequence B   |      ..same..|      ..same..|page 4..       |     forked from A at 36:
                                                                     full pages are shared,
                                                                     the cut one is copied

A page is shared only when full and only by forking; only the last page of a sequence may be
partly filled, and it belongs to that sequence alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aotlm.errors import EngineError


class _Page:
    """One page; compared by identity. TVM knows its number, nobody here needs it."""

    __slots__ = ("users",)

    def __init__(self) -> None:
        self.users = 1


@dataclass(slots=True)
class _Holding:
    length: int = 0
    pages: list[_Page] = field(default_factory=list)


class PageBudget:
    """Pages of one cache. Every method that cannot be granted raises and changes nothing."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = num_pages
        self._holdings: dict[int, _Holding] = {}

    @property
    def free(self) -> int:
        """Pages that nobody uses."""
        return self._free

    @property
    def sequences(self) -> tuple[int, ...]:
        return tuple(self._holdings)

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._holdings

    def pages_for(self, num_tokens: int) -> int:
        """Pages that a sequence of that many tokens takes when it shares none."""
        return -(-num_tokens // self.page_size)

    def length(self, seq_id: int) -> int:
        """Cached tokens of a sequence. Raises EngineError when it is unknown."""
        return self._holding(seq_id).length

    def pages_to_append(self, seq_id: int, num_tokens: int) -> int:
        """Free pages needed to append that many tokens. Raises EngineError."""
        holding = self._holding(seq_id)
        return self.pages_for(holding.length + num_tokens) - len(holding.pages)

    def pages_freed_by_remove(self, seq_id: int) -> int:
        """Pages that become free when the sequence is removed. Raises EngineError."""
        return sum(page.users == 1 for page in self._holding(seq_id).pages)

    def add(self, seq_id: int) -> None:
        """Begin an empty sequence. Raises EngineError when the id is taken or negative."""
        self._check_new(seq_id)
        self._holdings[seq_id] = _Holding()

    def append(self, seq_id: int, num_tokens: int) -> None:
        """Grow a sequence. Raises EngineError when it is unknown or pages are lacking."""
        needed = self.pages_to_append(seq_id, num_tokens)
        self._check_free(needed, f"append {num_tokens} tokens to sequence {seq_id}")
        holding = self._holdings[seq_id]
        holding.pages.extend(_Page() for _ in range(needed))
        holding.length += num_tokens
        self._free -= needed

    def fork(self, parent_id: int, child_id: int, position: int) -> None:
        """Begin `child_id` with the first `position` tokens of `parent_id`.

        Raises EngineError for an unknown parent, a taken child id, a position beyond the
        parent, or when the one page that may have to be copied is lacking.
        """
        parent = self._holding(parent_id)
        self._check_new(child_id)
        if not 0 <= position <= parent.length:
            raise EngineError(
                f"KV cache: cannot fork sequence {parent_id} at {position}, "
                f"it holds {parent.length} tokens"
            )
        shared, rest = divmod(position, self.page_size)
        copied = 1 if rest else 0
        self._check_free(copied, f"fork sequence {parent_id} at {position}")
        pages = parent.pages[:shared]
        for page in pages:
            page.users += 1
        pages.extend(_Page() for _ in range(copied))
        self._free -= copied
        self._holdings[child_id] = _Holding(position, pages)

    def pop(self, seq_id: int, num_tokens: int) -> None:
        """Drop the last tokens of a sequence.

        Raises EngineError for an unknown sequence, for more tokens than it holds, or when the
        new last page is shared, must be copied, and no page is free.
        """
        holding = self._holding(seq_id)
        if not 0 <= num_tokens <= holding.length:
            raise EngineError(
                f"KV cache: cannot drop {num_tokens} tokens of sequence {seq_id}, "
                f"it holds {holding.length}"
            )
        if num_tokens == 0:
            return
        length = holding.length - num_tokens
        keep = self.pages_for(length)
        dropped = holding.pages[keep:]
        cut = holding.pages[keep - 1] if length % self.page_size else None
        if cut is not None and cut.users > 1:
            # TVM copies the cut page after it has freed the sequence's own pages behind it.
            freed = sum(page.users == 1 for page in dropped)
            self._check_free(1 - freed, f"drop {num_tokens} tokens of sequence {seq_id}")
            self._release([cut])
            holding.pages[keep - 1] = _Page()
            self._free -= 1
        self._release(dropped)
        del holding.pages[keep:]
        holding.length = length

    def remove(self, seq_id: int) -> None:
        """Forget a sequence. Raises EngineError when it is unknown."""
        holding = self._holding(seq_id)
        del self._holdings[seq_id]
        self._release(holding.pages)

    def clear(self) -> None:
        """Forget every sequence."""
        self._holdings.clear()
        self._free = self.num_pages

    def check_integrity(self) -> None:
        """Raises AssertionError when the counts contradict each other."""
        users: dict[_Page, int] = {}
        for seq_id, holding in self._holdings.items():
            assert len(holding.pages) == self.pages_for(holding.length), f"pages of {seq_id}"
            for page in holding.pages:
                users[page] = users.get(page, 0) + 1
            if holding.length % self.page_size:
                assert holding.pages[-1].users == 1, f"the open page of {seq_id} is shared"
        assert all(page.users == count for page, count in users.items()), "page users"
        assert self._free + len(users) == self.num_pages, "free and used pages"

    def _holding(self, seq_id: int) -> _Holding:
        holding = self._holdings.get(seq_id)
        if holding is None:
            raise EngineError(f"KV cache: there is no sequence {seq_id}")
        return holding

    def _check_new(self, seq_id: int) -> None:
        if seq_id < 0:  # TVM's popn uses the negative ids for itself
            raise EngineError(f"KV cache: a sequence id must not be negative, not {seq_id}")
        if seq_id in self._holdings:
            raise EngineError(f"KV cache: there is a sequence {seq_id} already")

    def _check_free(self, needed: int, purpose: str) -> None:
        if needed > self._free:
            raise EngineError(
                f"KV cache: {needed} pages needed to {purpose}, {self._free} of "
                f"{self.num_pages} are free"
            )

    def _release(self, pages: list[_Page]) -> None:
        for page in pages:
            page.users -= 1
            if page.users == 0:
                self._free += 1
