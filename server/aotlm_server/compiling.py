"""From what the user typed to an artifact on disk, by the compiler if there is none.

The compiler is a process of its own: a crash of it must not take the server down.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

from aotlm.artifact import Artifact, find_artifact, list_artifacts
from aotlm.errors import ArtifactNotFound

# -P: a file in the user's folder must not take the place of a module.
_COMPILER = "import sys; from aotlm_compile.cli import main; sys.exit(main())"


async def find_or_compile(target: str) -> Path:
    """The folder of an artifact for `target`: its path or name, a recipe, or a checkpoint.

    Raises ArtifactError for an artifact that cannot be used, CalledProcessError where the
    compiler failed, which has told the reason on stderr by then.
    """
    path = await asyncio.to_thread(_find, target)
    return await _compile(target) if path is None else path


def _find(target: str) -> Path | None:
    """An artifact by its path, its folder's name or its model's name; of several the fittest."""
    with contextlib.suppress(ArtifactNotFound):
        return find_artifact(target)
    usable = [listed.artifact for listed in list_artifacts() if listed.artifact is not None]
    fitting = [artifact for artifact in usable if artifact.manifest.model.name == target]
    best = max(fitting, key=_fitness, default=None)
    return None if best is None else best.path


def _fitness(artifact: Artifact) -> tuple[int, str]:
    """The one that uses more of this CPU, then the newest."""
    return len(artifact.manifest.target.features), artifact.manifest.created


async def _compile(target: str) -> Path:
    print(f"there is no compiled model {target!r} yet: compiling it", file=sys.stderr, flush=True)
    command = (sys.executable, "-P", "-c", _COMPILER, target)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        # Progress goes to stderr, which it shares with us; stdout ends with the path.
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode or not output.strip():
        raise subprocess.CalledProcessError(process.returncode or 1, command)
    return Path(output.decode().splitlines()[-1])
