"""Whether an artifact on disk is what a compile would make."""

from __future__ import annotations

from pathlib import Path

from aotlm.artifact import read_manifest
from aotlm.errors import ArtifactError

from .plan import CompilePlan


def up_to_date(output: Path, plan: CompilePlan) -> bool:
    """True for a complete artifact of the same source, options and versions.

    Sizes are compared, checksums are not: `aotlm artifacts` verifies them.
    """
    try:
        manifest = read_manifest(output)
        if manifest.build_key != plan.build_key():
            return False
        return all(
            (output / name).stat().st_size == file.size for name, file in manifest.files.items()
        )
    except (ArtifactError, OSError):
        return False
