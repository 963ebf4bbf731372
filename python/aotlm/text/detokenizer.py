"""Token ids -> text, piece by piece, in whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

_UTF8 = codecs.getincrementaldecoder("utf-8")


class HasTokenBytes(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes: ...


class Detokenizer:
    """The text of one growing sequence.

    The joined pieces, `finish` included, equal the decoding of all bytes at once, however the
    ids were cut. A character whose bytes span tokens is held back until it is whole; bytes
    that are no UTF-8 become U+FFFD as soon as that is certain.
    """

    __slots__ = ("_decoder", "_tokenizer")

    def __init__(self, tokenizer: HasTokenBytes) -> None:
        self._tokenizer = tokenizer
        self._decoder = _UTF8("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that is certain now; may be empty."""
        return self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, token_ids)))

    def finish(self) -> str:
        """What is left of a character that never became whole: one U+FFFD, or nothing."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
