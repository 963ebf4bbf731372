"""Tokens that stand outside the vocabulary's merges, and how text is cut at them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One entry of a tokenizer.json's `added_tokens`.

    `special` tokens (ends of turns, ...) have no text; the others are ordinary text that is
    always one token. `loose` ones also swallow white space or only match whole words.
    """

    token_id: int
    content: str
    special: bool
    normalized: bool
    loose: bool


class AddedTokenSplitter:
    """Cuts text at added tokens the way Hugging Face's `tokenizers` does.

    Leftmost match first, then the longest; first the tokens that match the raw text, then, in
    what is left, those that match the normalized text.
    """

    def __init__(self, tokens: Sequence[AddedToken]) -> None:
        self._tokens = {token.content: token for token in tokens if token.content}
        self._passes = [
            pattern
            for normalized in (False, True)
            if (pattern := self._pattern(normalized)) is not None
        ]

    def _pattern(self, normalized: bool) -> re.Pattern[str] | None:
        contents = [t.content for t in self._tokens.values() if t.normalized is normalized]
        contents.sort(key=len, reverse=True)
        return re.compile("|".join(map(re.escape, contents))) if contents else None

    def split(self, text: str, allow_special: bool) -> Iterator[str | int]:
        """Stretches of text and, between them, the ids of added tokens; no empty stretches.

        With `allow_special=False` special tokens stay part of the text around them.
        """
        return self._split(text, allow_special, 0)

    def _split(self, text: str, allow_special: bool, depth: int) -> Iterator[str | int]:
        if depth == len(self._passes):
            if text:
                yield text
            return
        done = 0
        for match in self._passes[depth].finditer(text):
            token = self._tokens[match.group()]
            if token.special and not allow_special:
                continue
            yield from self._split(text[done : match.start()], allow_special, depth + 1)
            yield token.token_id
            done = match.end()
        yield from self._split(text[done:], allow_special, depth + 1)
