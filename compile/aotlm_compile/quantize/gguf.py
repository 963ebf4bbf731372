"""`gguf`: keep the quantized values of a GGUF file, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

from aotlm.errors import CompileError
from aotlm_compile.checkpoint.base import Checkpoint, GroupedWeight, Weight

from .scheme import Scheme, Storage


def _storage(checkpoint: Checkpoint, names: Sequence[str]) -> Storage:
    if checkpoint.kind != "gguf":
        raise CompileError(
            f"--quantization gguf keeps a GGUF file's own, and {checkpoint.name} is "
            f"{checkpoint.kind}; use q4f32_1 or q0f32"
        )
    bits = [checkpoint.bits(name) for name in names]
    if None in bits:
        return "dense"
    # Eight bits hold four-bit codes too: value = code * scale + minimum in both.
    return "grouped4" if set(bits) == {4} else "grouped8"


def _regroup(weight: Weight) -> GroupedWeight:
    assert isinstance(weight, GroupedWeight)
    return weight


GGUF = Scheme("gguf", "the file's own 4-bit and 8-bit groups, kept exactly", _storage, _regroup)
