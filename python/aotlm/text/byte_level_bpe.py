"""Byte-level BPE by tiktoken: several times as fast as `tokenizers`, with the same ids.

Where tiktoken could differ, this says so instead of guessing: `build` returns None for a
vocabulary it cannot represent, `accepts` is False for the rare text it cannot take.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from tiktoken import Encoding

from aotlm.text.bpe_table import exact_ranks
from aotlm.text.byte_alphabet import BYTE_ALPHABET, spelled_bytes
from aotlm.text.pre_tokenizer import tiktoken_pattern

# tiktoken's regex engine backtracks: a run of a million blanks overflows its stack, and the
# panic is a BaseException that would end the server.
_LONG_BLANK = 50_000
_BLANKS = re.compile(r"\s+")

_OFF = (None, "", False)


class ByteLevelBPE:
    """Text -> ids for stretches of text without added tokens."""

    __slots__ = ("_encoding", "_ids", "_known_bytes", "_nfc")

    def __init__(
        self, pattern: str, ranks: dict[bytes, int], ids: list[int], known: bytes, nfc: bool
    ) -> None:
        """`ids`: token id by rank; `known`: the bytes that are tokens; `nfc`: text must be NFC."""
        self._encoding = Encoding(
            "aotlm", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )
        self._ids = ids
        self._known_bytes = known
        self._nfc = nfc

    def accepts(self, text: str) -> bool:
        """Whether `encode` gives what `tokenizers` gives for this text."""
        if not text.isascii():
            # New characters: the regex engines and Unicode tables need not know the same ones.
            if any(unicodedata.category(char) == "Cn" for char in set(text)):
                return False
            if self._nfc and not unicodedata.is_normalized("NFC", text):
                return False
        # `tokenizers` drops bytes that are not tokens, before it merges.
        if len(self._known_bytes) < 256 and text.encode().translate(None, self._known_bytes):
            return False
        return len(text) < _LONG_BLANK or all(
            match.end() - match.start() < _LONG_BLANK for match in _BLANKS.finditer(text)
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text that `accepts` has accepted."""
        return list(map(self._ids.__getitem__, self._encoding.encode_ordinary(text)))


def build(data: Mapping[str, Any]) -> ByteLevelBPE | None:
    """The encoder of a parsed tokenizer.json; None when tiktoken cannot give the same ids."""
    model, normalizer = data["model"], data.get("normalizer")
    pattern = tiktoken_pattern(data.get("pre_tokenizer"))
    nfc = isinstance(normalizer, Mapping) and normalizer.get("type") == "NFC"
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if (
        model.get("type") != "BPE"
        or pattern is None
        or not (normalizer is None or nfc)
        or any(model.get(option) not in _OFF for option in options)
    ):
        return None
    vocab: dict[str, int] = model["vocab"]
    # Older files write a pair as "a b"; a blank inside a token is spelled otherwise.
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    if any(len(pair) != 2 for pair in pairs) or len(set(vocab.values())) != len(vocab):
        return None
    rank_of = exact_ranks(vocab, pairs, ignore_merges=model.get("ignore_merges") is True)
    if rank_of is None:
        return None
    by_rank: list[tuple[str, int] | None] = [None] * (max(rank_of, default=-1) + 1)
    for item in vocab.items():
        if rank_of[item[1]] >= 0:
            by_rank[rank_of[item[1]]] = item
    merged = [item for item in by_rank if item is not None]
    spelled = spelled_bytes([token for token, _ in merged])
    if spelled is None:
        return None
    ids = [vocab.get(char, 0) for char in BYTE_ALPHABET] + [token_id for _, token_id in merged]
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks.update(zip(spelled, range(256, len(ids)), strict=True))
    known = bytes(byte for byte, char in enumerate(BYTE_ALPHABET) if char in vocab)
    return ByteLevelBPE(pattern, ranks, ids, known, nfc)
