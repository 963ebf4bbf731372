"""A compiled model on disk: the folder that `compile` writes and the engine reads.

manifest.json        what is in the folder and what it is for (`aotlm.manifest`)
model.so             the library
weights.bin          all weights, memory-mapped when loaded
tokenizer.json       Hugging Face's format
chat_template.jinja  the model's own template, where it has one
"""

from __future__ import annotations

import difflib
import hashlib
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aotlm.cpu_features import read_cpu
from aotlm.errors import ArtifactCorrupt, ArtifactError, ArtifactIncompatible, ArtifactNotFound
from aotlm.manifest import (
    CHAT_TEMPLATE_FILE,
    LIBRARY_FILE,
    MANIFEST_FILE,
    REQUIRED_FILES,
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
    WeightEntry,
    write_manifest,
)

__all__ = [
    "Artifact",
    "ListedArtifact",
    "build_root",
    "check_target",
    "describe_file",
    "find_artifact",
    "find_model",
    "list_artifacts",
    "read_manifest",
    "remove_artifact",
    "Manifest",
    "SourceInfo",
    "ModelInfo",
    "TargetInfo",
    "Limits",
    "WeightEntry",
    "TokenInfo",
    "GenerationDefaults",
    "FileEntry",
    "write_manifest",
]

_BUILD_ROOT = Path("model_libs") / "build"
_MAX_MANIFEST = 64 << 20  # bytes; a large model's has about 1 MB


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact that is complete and runs on this machine."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path | str, verify: bool = False) -> Artifact:
        """Read the manifest, check presence and size of every file and the CPU's features.

        With `verify` the checksums too, which reads everything. Raises ArtifactNotFound,
        ArtifactCorrupt or ArtifactIncompatible.
        """
        path = Path(path)
        artifact = cls(path, read_manifest(path))
        artifact._check_sizes()
        check_target(artifact.manifest, str(path))
        if verify:
            artifact.verify()
        return artifact

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def library_path(self) -> Path:
        return self.path / LIBRARY_FILE

    @property
    def weights_path(self) -> Path:
        return self.path / WEIGHTS_FILE

    @property
    def tokenizer_path(self) -> Path:
        return self.path / TOKENIZER_FILE

    @property
    def chat_template_path(self) -> Path | None:
        """None when the model has no template of its own."""
        has_one = CHAT_TEMPLATE_FILE in self.manifest.files
        return self.path / CHAT_TEMPLATE_FILE if has_one else None

    @property
    def size(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(file.size for file in self.manifest.files.values())

    def verify(self) -> None:
        """Compare the checksum of every file. Raises ArtifactCorrupt naming the first bad one."""
        for name, entry in self.manifest.files.items():
            if describe_file(self.path / name).sha256 != entry.sha256:
                raise ArtifactCorrupt(
                    f"{self.path / name} was altered (its sha256 differs from the manifest's); "
                    "compile the model again"
                )

    def _check_sizes(self) -> None:
        for name, entry in self.manifest.files.items():
            file = self.path / name
            try:
                size = file.stat().st_size if file.is_file() else None
            except OSError:
                size = None
            if size is None:
                raise ArtifactCorrupt(f"{file} is missing; compile the model again")
            if size != entry.size:
                raise ArtifactCorrupt(
                    f"{file} has {size} bytes, the manifest says {entry.size}; "
                    "compile the model again"
                )


@dataclass(frozen=True, slots=True)
class ListedArtifact:
    """A folder under the build root: an artifact, or what is wrong with it."""

    path: Path
    artifact: Artifact | None
    problem: ArtifactError | None = None


def read_manifest(path: Path) -> Manifest:
    """The manifest of an artifact's folder, nothing else is checked.

    Raises ArtifactNotFound, ArtifactCorrupt or ArtifactIncompatible.
    """
    file = path / MANIFEST_FILE
    try:
        if file.stat().st_size > _MAX_MANIFEST:
            raise ArtifactCorrupt(f"{file} is too large for a manifest; compile the model again")
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactNotFound(
            f"{path} is not an artifact (it has no {MANIFEST_FILE}); "
            "make one with: aotlm compile MODEL"
        ) from None
    except OSError as error:
        raise ArtifactCorrupt(f"{file} cannot be read: {error.strerror}") from error
    return Manifest.from_json(text, str(file))


def check_target(manifest: Manifest, where: str) -> None:
    """Raises ArtifactIncompatible when this machine cannot run the library."""
    target = manifest.target
    again = "compile the model again on this machine"
    if target.kind != "cpu":
        raise ArtifactIncompatible(
            f"{where} was compiled for {target.kind}, which this build cannot run; {again}"
        )
    cpu = read_cpu()
    machine = target.triple.partition("-")[0]
    machine = {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)
    here = platform.system().lower()
    system = "darwin" if ("darwin" in target.triple or "macos" in target.triple) else "linux"
    if machine != cpu.machine or (here in ("linux", "darwin") and here != system):
        raise ArtifactIncompatible(
            f"{where} was compiled for {target.triple}, this machine is {cpu.machine}-{here}; "
            f"{again}"
        )
    missing = [feature for feature in target.features if feature not in cpu.features]
    if missing:
        raise ArtifactIncompatible(
            f"{where} needs CPU features this machine lacks ({', '.join(missing)}); {again}"
        )


def build_root() -> Path:
    """Where artifacts are written and looked for: $AOTLM_MODEL_LIBS, else ./model_libs/build."""
    return Path(os.environ.get("AOTLM_MODEL_LIBS") or _BUILD_ROOT)


def find_artifact(name: str | Path, root: Path | None = None) -> Path:
    """The folder of an artifact, given its path or its name under the build root.

    Only looks for a manifest; `Artifact.open` checks the rest. Raises ArtifactNotFound, which
    names what there is.
    """
    root = build_root() if root is None else root
    plain = os.sep not in str(name) and str(name) not in ("", ".", "..")
    for candidate in (Path(name), root / name) if plain else (Path(name),):
        if (candidate / MANIFEST_FILE).is_file():
            return candidate
    known = [path.name for path in _folders(root)]
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.3) or known[:5]
    there = f"there: {', '.join(close)}" if close else "make one with: aotlm compile MODEL"
    raise ArtifactNotFound(f"there is no artifact {str(name)!r} here or in {root}; {there}")


def find_model(name: str | Path, root: Path | None = None) -> Path:
    """As `find_artifact`, and by the name of the model too.

    Of several artifacts of a model the fittest for this machine: that which uses most of its
    CPU, then the newest. Raises ArtifactNotFound.
    """
    try:
        return find_artifact(name, root)
    except ArtifactNotFound:
        usable = (listed.artifact for listed in list_artifacts(root))
        named = [a for a in usable if a is not None and a.manifest.model.name == str(name)]
        if not named:
            raise
        best = max(named, key=lambda a: (len(a.manifest.target.features), a.manifest.created))
        return best.path


def list_artifacts(root: Path | None = None) -> list[ListedArtifact]:
    """All artifacts under the build root by name; unusable ones with their problem."""
    listed = []
    for path in _folders(build_root() if root is None else root):
        try:
            listed.append(ListedArtifact(path, Artifact.open(path)))
        except ArtifactError as error:
            listed.append(ListedArtifact(path, None, error))
    return listed


def remove_artifact(path: Path) -> None:
    """Delete an artifact's folder; it stops being loadable before the first file is gone.

    Raises ArtifactNotFound for a folder without a manifest, ArtifactError for one that holds
    other things than an artifact.
    """
    if not (path / MANIFEST_FILE).is_file():
        raise ArtifactNotFound(f"{path} is not an artifact (it has no {MANIFEST_FILE})")
    if path.is_symlink():
        raise ArtifactError(f"{path} is a link; remove the folder that it points to")
    known = {MANIFEST_FILE, CHAT_TEMPLATE_FILE, *REQUIRED_FILES}
    with suppress(ArtifactError):  # an unusable artifact may be removed, too
        known |= set(read_manifest(path).files)
    strange = sorted(entry.name for entry in path.iterdir() if entry.name not in known)
    if strange:
        raise ArtifactError(f"{path} holds {strange[0]!r}, which is not part of an artifact")
    doomed = path.resolve()
    hidden = doomed.with_name(f".{doomed.name}.{os.getpid()}.old.tmp")
    try:
        doomed.rename(hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be removed: {error.strerror}") from error


def describe_file(path: Path) -> FileEntry:
    """Checksum and size of one file. Raises ArtifactCorrupt when it cannot be read."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return FileEntry(sha256=digest, size=os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise ArtifactCorrupt(f"{path} cannot be read: {error.strerror}") from error


def _folders(root: Path) -> Iterator[Path]:
    """Folders with a manifest; names that begin with a dot are being written or removed."""
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return
    for path in entries:
        if not path.name.startswith(".") and (path / MANIFEST_FILE).is_file():
            yield path
