"""From what the user typed to an artifact on disk, by the compiler if there is none.

The compiler is a process of its own: a crash of it must not take the server down.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from aotlm.artifact import build_root, find_model
from aotlm.errors import ArtifactCorrupt, ArtifactNotFound

# -P: a file in the user's folder must not take the place of a module.
_COMPILER = "import sys; from aotlm_compile.cli import main; sys.exit(main())"

_ONLY_IN_ARTIFACTS = ("model.so", "weights.bin")


async def find_or_compile(target: str) -> Path:
    """The folder of an artifact for `target`: its path, its name or its model's, a recipe,
    or a checkpoint.

    Raises ArtifactError for an artifact that cannot be used, CalledProcessError where the
    compiler failed, which has told the reason on stderr by then.
    """
    try:
        return await asyncio.to_thread(find_model, target)
    except ArtifactNotFound:
        _refuse_damaged(target)
        return await _compile(target)


def _refuse_damaged(target: str) -> None:
    """Raise ArtifactCorrupt for a folder that was an artifact, rather than call it a checkpoint."""
    for folder in (Path(target), build_root() / target):
        if any((folder / name).is_file() for name in _ONLY_IN_ARTIFACTS):
            raise ArtifactCorrupt(
                f"{folder} is a damaged artifact: it has no manifest.json; remove it and "
                "compile the model again"
            )


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
