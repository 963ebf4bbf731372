"""The bytes each token of a vocabulary stands for, by the vocabulary's way of spelling them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from aotlm.text.byte_alphabet import spelled_bytes

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # SentencePiece's byte fallback
_SPACE = "\u2581"  # SentencePiece's visible space


def vocabulary_bytes(vocab: Mapping[str, int], data: Mapping[str, Any]) -> list[bytes]:
    """Bytes by token id, for the vocabulary of a parsed tokenizer.json; b"" for unused ids."""
    decoders = {decoder.get("type") for decoder in _steps(data.get("decoder"), "decoders")}
    tokens = list(vocab)
    if "ByteLevel" in decoders:
        values = spelled_bytes(tokens) or [_byte_level(token) for token in tokens]
    elif "WordPiece" in decoders:
        values = [
            token[2:].encode() if token.startswith("##") else f" {token}".encode()
            for token in tokens
        ]
    else:
        values = [_sentence_piece(token) for token in tokens]
    result = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, value in zip(tokens, values, strict=True):
        result[vocab[token]] = value
    return result


def _byte_level(token: str) -> bytes:
    """Names of special tokens may hold characters that stand for no byte: those are themselves."""
    values = spelled_bytes([token])
    return token.encode() if values is None else values[0]


def _sentence_piece(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(_SPACE, " ").encode()


def _steps(spec: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a decoder, with sequences taken apart."""
    if not isinstance(spec, Mapping):
        return
    if spec.get("type") == "Sequence":
        for step in spec[key]:
            yield from _steps(step, key)
    else:
        yield spec
