"""Everything in an artifact beside the library and the weights; the manifest comes last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from aotlm.artifact import describe_file
from aotlm.manifest import (
    CHAT_TEMPLATE_FILE,
    LIBRARY_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    FileEntry,
    GenerationDefaults,
    Limits,
    Manifest,
    ModelInfo,
    SourceInfo,
    TargetInfo,
    TokenInfo,
    write_manifest,
)

from .checkpoint.base import Checkpoint
from .plan import CompilePlan
from .targets import CpuTarget
from .weights_file import WeightsFile


@dataclass(frozen=True, slots=True)
class Contents:
    """What the steps of a compile made. `model` and `limits` are the manifest's entries."""

    plan: CompilePlan
    checkpoint: Checkpoint
    tokenizer: Mapping[str, Any]
    target: CpuTarget
    model: Mapping[str, Any]
    limits: Mapping[str, int]
    weights: WeightsFile


def write_package(folder: Path, contents: Contents) -> None:
    """Complete the folder that holds library and weights already. Raises CheckpointError."""
    checkpoint = contents.checkpoint
    text = json.dumps(contents.tokenizer, ensure_ascii=False, separators=(",", ":"))
    (folder / TOKENIZER_FILE).write_text(text, encoding="utf-8")
    files = {
        LIBRARY_FILE: describe_file(folder / LIBRARY_FILE),
        # Summed up while it was written: reading gigabytes again would take a minute.
        WEIGHTS_FILE: FileEntry(contents.weights.sha256, contents.weights.size),
        TOKENIZER_FILE: describe_file(folder / TOKENIZER_FILE),
    }
    template = checkpoint.chat_template()
    if template is not None:
        (folder / CHAT_TEMPLATE_FILE).write_text(template, encoding="utf-8", newline="")
        files[CHAT_TEMPLATE_FILE] = describe_file(folder / CHAT_TEMPLATE_FILE)
    write_manifest(folder, _manifest(contents, files))


def versions() -> dict[str, str]:
    """Versions of aotlm, tvm and tvm_ffi."""
    return {
        name: _version(package)
        for name, package in (
            ("aotlm", "aotlm"),
            ("tvm", "apache-tvm"),
            ("tvm_ffi", "apache-tvm-ffi"),
        )
    }


def _manifest(contents: Contents, files: Mapping[str, FileEntry]) -> Manifest:
    plan, checkpoint = contents.plan, contents.checkpoint
    bos_id, eos_ids, add_bos = checkpoint.tokens()
    target = contents.target.manifest_entry()
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=versions(),
        source=SourceInfo(checkpoint.kind, checkpoint.name, plan.fingerprint),
        model=ModelInfo(**contents.model),
        quantization=plan.quantization,
        target=TargetInfo(**{**target, "features": tuple(target["features"])}),
        limits=Limits(**contents.limits),
        weights=tuple(contents.weights.places),
        tokens=TokenInfo(bos_id, eos_ids, add_bos),
        files=files,
        generation=GenerationDefaults(**_defaults(checkpoint)),
        build_key=plan.build_key(),
    )


def _defaults(checkpoint: Checkpoint) -> dict[str, Any]:
    return dict(checkpoint.generation_defaults())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "source"  # run from a checkout that was never installed
