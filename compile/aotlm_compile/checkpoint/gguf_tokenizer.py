"""The vocabulary inside a GGUF file, as a tokenizer.json of Hugging Face's format.

Byte-level BPE (`tokenizer.ggml.model` "gpt2") with the pre-tokenizers below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aotlm.errors import CheckpointError

from .gguf_container import Value

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# Tokens that end a turn or a text wherever they occur, whatever the metadata's eos id says.
_END_TEXTS = {
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
}
_END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))

# Splitting patterns as their models publish them in tokenizer.json.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_GPT2 = _byte_level(use_regex=True)
_SMOLLM = _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))
_LLAMA3 = _sequence(_split(_WORDS.replace("DIGITS", "{1,3}")), _byte_level(use_regex=False))
_QWEN2 = _sequence(_split(_WORDS.replace("DIGITS", "")), _byte_level(use_regex=False))

PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
}
_WHOLE_WORDS_FIRST = {"llama-bpe", "llama3", "llama-v3"}  # a word in the vocabulary is one token
_NFC = {"qwen2"}


def tokenizer_json(metadata: Mapping[str, Value], where: str) -> dict[str, Any]:
    """The vocabulary as tokenizer.json. Raises CheckpointError that names what is not read."""
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise CheckpointError(f"{where} holds no tokenizer (no key 'tokenizer.ggml.model')")
    if model != "gpt2":
        raise CheckpointError(
            f"{where}: tokenizer model {model!r:.40} is not supported; supported: gpt2 "
            "(byte-level BPE); a Hugging Face folder with a tokenizer.json works for the others"
        )
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"{where}: pre-tokenizer {pre!r:.40} is not supported; "
            f"supported: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    texts = _strings(metadata, "tokenizer.ggml.tokens", where)
    vocabulary = {text: index for index, text in enumerate(texts)}
    if len(vocabulary) != len(texts):
        raise CheckpointError(f"{where}: the vocabulary holds the same token twice")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(texts, _token_types(metadata, len(texts), where)),
        "normalizer": {"type": "NFC"} if pre in _NFC else None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _WHOLE_WORDS_FIRST,
            "vocab": vocabulary,
            "merges": _merges(metadata, vocabulary, where),
        },
    }


def end_token_ids(metadata: Mapping[str, Value], where: str) -> tuple[int, ...]:
    """The ids that end a sequence: those the metadata names, then well-known control tokens."""
    texts = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list):
        return ()
    found: list[int] = []
    for key in _END_KEYS:
        value = metadata.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(texts):
            found.append(value)
    types = _token_types(metadata, len(texts), where)
    found += [i for i in np.flatnonzero(types == _CONTROL).tolist() if texts[i] in _END_TEXTS]
    return tuple(dict.fromkeys(found))


def _added_tokens(texts: list[str], types: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    special = np.isin(types, (_UNKNOWN, _CONTROL))
    return [
        {
            "id": index,
            "content": texts[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": bool(special[index]),
        }
        for index in np.flatnonzero(special | (types == _USER_DEFINED)).tolist()
    ]


def _merges(
    metadata: Mapping[str, Value], vocabulary: Mapping[str, int], where: str
) -> list[list[str]]:
    result = []
    for line in _strings(metadata, "tokenizer.ggml.merges", where):
        # A space inside a piece is written as another character, so one space parts the two.
        left, _, right = line.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise CheckpointError(f"{where}: merge {line!r:.60} does not join tokens")
        result.append([left, right])
    return result


def _token_types(
    metadata: Mapping[str, Value], count: int, where: str
) -> np.ndarray[Any, np.dtype[np.int64]]:
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return np.ones(count, dtype=np.int64)
    if not isinstance(types, np.ndarray) or types.shape != (count,) or types.dtype.kind not in "iu":
        raise CheckpointError(
            f"{where}: 'tokenizer.ggml.token_type' does not fit the {count} tokens"
        )
    return types.astype(np.int64)


def _strings(metadata: Mapping[str, Value], key: str, where: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value:
        raise CheckpointError(f"{where}: metadata key {key!r} is missing or not a list of strings")
    return value
