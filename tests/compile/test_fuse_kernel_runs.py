"""Kernels between two attentions become one function, and the machine makes fewer calls."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aotlm_compile import program
from aotlm_compile.checkpoint.open import open_checkpoint
from aotlm_compile.targets import parse_target
from tests.tiny_model import write_tiny_model

LAYERS = 2


def calls(function: Any) -> Counter[str]:
    """How often a function calls what: kernels by kind, packed functions by name."""
    from tvm import relax as rx

    found: Counter[str] = Counter()
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, rx.Call) and hasattr(value.op, "name"):
                if value.op.name == "relax.call_tir":
                    found["kernel"] += 1
                elif value.op.name == "relax.call_dps_packed":
                    found[value.args[0].global_symbol] += 1
    return found


@pytest.mark.parametrize("scheme", ["q0f32", "q4f32_1"])
def test_a_layer_is_two_kernels_and_an_attention(tmp_path: Path, scheme: str) -> None:
    write_tiny_model(tmp_path / "tiny")
    checkpoint = open_checkpoint(tmp_path / "tiny")
    options = program.ProgramOptions(context_window=64, prefill_chunk=16, max_batch_size=2)
    built = program.build(checkpoint, scheme, parse_target("cpu:plain"), options)
    attention = "vm.builtin.attention_kv_cache_attention_with_fused_qkv"
    # The embedding and two kernels a layer; the head goes with the last one.
    expected = {"kernel": 2 * LAYERS + 1, attention: LAYERS}
    assert calls(built.module["decode"]) == expected
    assert calls(built.module["prefill"]) == expected
