"""A small folder that is an artifact in every respect but that it computes nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from aotlm.artifact import (
    FileEntry,
    GenerationDefaults,
    Limits,
    Manifest,
    ModelInfo,
    SourceInfo,
    TargetInfo,
    TokenInfo,
    WeightEntry,
    describe_file,
    write_manifest,
)
from aotlm.cpu_features import read_cpu

CONTENTS = {
    "model.so": b"\x7fELF",
    "weights.bin": bytes(160),
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
}


def host_triple() -> str:
    """Of the machine the tests run on."""
    import platform

    system = "apple-macos13.0" if platform.system() == "Darwin" else "unknown-linux-gnu"
    return f"{read_cpu().machine}-{system}"


def manifest(files: dict[str, FileEntry] | None = None, **changes: Any) -> Manifest:
    """A manifest in which every value differs from every other."""
    made = Manifest(
        created="2026-01-02T03:04:05+00:00",
        made_by={"aotlm": "0.1.0", "tvm": "0.27.0", "tvm_ffi": "0.1.14"},
        source=SourceInfo("gguf", "tiny.gguf", "5ca1ab1e"),
        model=ModelInfo(
            name="tiny",
            family="llama",
            vocab_size=101,
            hidden_size=64,
            num_layers=2,
            num_heads=4,
            num_kv_heads=3,
            head_dim=16,
            context_window=256,
            trained_context=512,
        ),
        quantization="q4f32_1",
        target=TargetInfo("cpu", host_triple(), "plain", ()),
        limits=Limits(context_window=256, prefill_chunk=128, max_batch_size=8, page_size=17),
        weights=(
            WeightEntry("a", (4, 8), "uint8", 0, 32),
            WeightEntry("b", (2, 12), "float32", 64, 96),
        ),
        tokens=TokenInfo(bos_id=1, eos_ids=(2, 7), add_bos=True),
        files=files or {name: FileEntry("0" * 64, len(data)) for name, data in CONTENTS.items()},
        generation=GenerationDefaults(temperature=0.6, top_k=20),
        build_key="feed",
    )
    return dataclasses.replace(made, **changes)


def write_artifact(folder: Path, **changes: Any) -> Path:
    """Make the folder with its files; `changes` go into the manifest."""
    folder.mkdir(parents=True)
    for name, data in CONTENTS.items():
        (folder / name).write_bytes(data)
    files = {name: describe_file(folder / name) for name in CONTENTS}
    write_manifest(folder, manifest(files, **changes))
    return folder


def edit_manifest(folder: Path, **changes: Any) -> None:
    """Change top-level values of manifest.json by hand."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
