"""From a path to a `Checkpoint`: which reader a file or folder needs."""

from __future__ import annotations

from pathlib import Path

from aotlm.errors import CheckpointError

from .base import Checkpoint
from .gguf import GgufCheckpoint
from .gguf_container import MAGIC
from .safetensors import SafetensorsCheckpoint

_PICKLED = {".bin", ".pt", ".pth", ".ckpt"}


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder. Raises CheckpointError."""
    if path.is_dir():
        if (path / "config.json").is_file() or any(path.glob("*.safetensors")):
            return SafetensorsCheckpoint(path)
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return GgufCheckpoint(files[0])
        if files:
            raise CheckpointError(f"{path} holds {len(files)} GGUF files; name the one you want")
        raise CheckpointError(f"{path} holds neither config.json nor a GGUF file")
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if not path.is_file():
        raise CheckpointError(f"{path} is neither a file nor a folder")
    if path.suffix in _PICKLED and not _is_gguf(path):
        raise CheckpointError(f"{path} holds pickled weights, which are never read; convert them")
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path} is one file of a model; name the folder it lies in")
    return GgufCheckpoint(path)


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
