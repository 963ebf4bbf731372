"""The `pre_tokenizer` of a tokenizer.json as one tiktoken pattern, where that is exact.

Only known patterns are translated: tiktoken drops what a pattern does not match, Hugging Face
keeps it, and the two regex engines differ in corners that a general translation would hit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Source: the pattern inside Hugging Face's ByteLevel, which is GPT-2's.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Each numeral is cut out first and ends the text before it, so white space before a numeral
# stands at an end. Source: Sequence(Digits(individual_digits), ByteLevel) of SmolLM.
_SINGLE_DIGITS = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"

# Source: the tokenizer.json of Llama 3 ({1,3}) and of Qwen 2 (one numeral at a time).
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMERALS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _WORDS.replace("NUMERALS", r"\p{N}{1,3}")
_QWEN2 = _WORDS.replace("NUMERALS", r"\p{N}")

# These match every character, and mean the same to Oniguruma and to tiktoken's regex engine.
_SPLITS = frozenset({_GPT2, _LLAMA3, _QWEN2})


def tiktoken_pattern(spec: Any) -> str | None:
    """The pattern that cuts text where the pre-tokenizer does; None when it is not a known one."""
    steps = spec.get("pretokenizers") if _is(spec, "Sequence") else [spec]
    match steps:
        case [last] if _is_byte_level(last, use_regex=True):
            return _GPT2
        case [{"type": "Digits", "individual_digits": True}, last] if _is_byte_level(
            last, use_regex=True
        ):
            return _SINGLE_DIGITS
        case [
            {
                "type": "Split",
                "pattern": {"Regex": str(pattern)},
                "behavior": "Isolated",
                "invert": False,
            },
            last,
        ] if pattern in _SPLITS and _is_byte_level(last, use_regex=False):
            return pattern
        case _:
            return None


def _is(step: Any, kind: str) -> bool:
    return isinstance(step, Mapping) and step.get("type") == kind


def _is_byte_level(step: Any, *, use_regex: bool) -> bool:
    return (
        _is(step, "ByteLevel")
        and step.get("add_prefix_space", True) is False
        and step.get("use_regex", True) is use_regex
    )
