"""Artifacts on disk: opened only when whole and fit for this machine, found, listed, removed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from aotlm.artifact import (
    Artifact,
    TargetInfo,
    build_root,
    describe_file,
    find_artifact,
    list_artifacts,
    remove_artifact,
)
from aotlm.cpu_features import read_cpu
from aotlm.errors import (
    ArtifactCorrupt,
    ArtifactError,
    ArtifactIncompatible,
    ArtifactNotFound,
)
from tests.core.artifact_files import CONTENTS, edit_manifest, host_triple, write_artifact


def target(features: tuple[str, ...] = (), triple: str | None = None) -> TargetInfo:
    return TargetInfo("cpu", triple or host_triple(), "x", features)


def test_a_whole_artifact_opens(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "tiny")
    artifact = Artifact.open(path, verify=True)
    assert artifact.name == "tiny"
    assert artifact.manifest.model.name == "tiny"
    assert artifact.library_path == path / "model.so"
    assert artifact.weights_path == path / "weights.bin"
    assert artifact.tokenizer_path == path / "tokenizer.json"
    assert artifact.chat_template_path == path / "chat_template.jinja"
    assert artifact.size == sum(map(len, CONTENTS.values()))
    assert Artifact.open(str(path)) == artifact


def test_a_model_without_a_template(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "tiny")
    files = {name: describe_file(path / name) for name in CONTENTS if "jinja" not in name}
    edit_manifest(path, files={n: {"sha256": f.sha256, "size": f.size} for n, f in files.items()})
    assert Artifact.open(path).chat_template_path is None


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ArtifactNotFound, match=r"not an artifact \(it has no manifest.json\)"):
            Artifact.open(path)


@pytest.mark.parametrize("name", CONTENTS)
def test_a_missing_truncated_or_altered_file_is_named(tmp_path: Path, name: str) -> None:
    path = write_artifact(tmp_path / "tiny")
    file = path / name
    data = file.read_bytes()
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    Artifact.open(path)  # sizes alone do not tell
    with pytest.raises(ArtifactCorrupt, match=f"{name} was altered"):
        Artifact.open(path, verify=True)
    file.write_bytes(data[:-1])
    with pytest.raises(ArtifactCorrupt, match=f"{name} has {len(data) - 1} bytes"):
        Artifact.open(path)
    file.unlink()
    with pytest.raises(ArtifactCorrupt, match=f"{name} is missing"):
        Artifact.open(path)
    file.mkdir()
    with pytest.raises(ArtifactCorrupt, match=f"{name} is missing"):
        Artifact.open(path)


def test_a_cpu_that_lacks_features(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "tiny", target=target(("quantum", "warp9")))
    with pytest.raises(ArtifactIncompatible) as caught:
        Artifact.open(path)
    assert str(caught.value) == (
        f"{path} needs CPU features this machine lacks (quantum, warp9); "
        "compile the model again on this machine"
    )


def test_features_that_are_there(tmp_path: Path) -> None:
    features = tuple(sorted(read_cpu().features)[:3])
    Artifact.open(write_artifact(tmp_path / "tiny", target=target(features)))


@pytest.mark.parametrize("triple", ["riscv64-unknown-linux-gnu", "x86_64-apple-macos13.0"])
def test_another_machine(tmp_path: Path, triple: str) -> None:
    if triple.startswith(host_triple()[:12]):
        triple = "x86_64-unknown-linux-gnu"
    path = write_artifact(tmp_path / "tiny", target=target(triple=triple))
    with pytest.raises(ArtifactIncompatible, match=f"was compiled for {triple}, this machine is"):
        Artifact.open(path)


def test_another_device(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "tiny", target=TargetInfo("cuda", "", "sm_90"))
    with pytest.raises(ArtifactIncompatible, match="compiled for cuda"):
        Artifact.open(path)


def test_another_version(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "tiny")
    edit_manifest(path, format_version=99)
    with pytest.raises(ArtifactIncompatible, match="format_version 99, this aotlm reads 1"):
        Artifact.open(path)


def test_finding_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_artifact(tmp_path / "build" / "tiny")
    assert find_artifact("tiny", tmp_path / "build") == path
    assert find_artifact(path) == path
    monkeypatch.chdir(tmp_path / "build")
    assert find_artifact("tiny").resolve() == path
    assert find_artifact("./tiny").resolve() == path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AOTLM_MODEL_LIBS", str(tmp_path / "build"))
    assert find_artifact("tiny") == path


@pytest.mark.parametrize("name", ["tini", "../build/none", "", "..", ".", "/nowhere"])
def test_finding_nothing_says_what_there_is(tmp_path: Path, name: str) -> None:
    write_artifact(tmp_path / "build" / "tiny")
    with pytest.raises(ArtifactNotFound, match="there: tiny"):
        find_artifact(name, tmp_path / "build")


def test_finding_in_an_empty_root(tmp_path: Path) -> None:
    with pytest.raises(ArtifactNotFound, match="make one with: aotlm compile MODEL"):
        find_artifact("tiny", tmp_path / "none")


def test_the_default_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AOTLM_MODEL_LIBS", raising=False)
    assert build_root() == Path("model_libs/build")
    monkeypatch.setenv("AOTLM_MODEL_LIBS", "/data/libs")
    assert build_root() == Path("/data/libs")


def test_listing_shows_what_is_wrong(tmp_path: Path) -> None:
    write_artifact(tmp_path / "good")
    edit_manifest(write_artifact(tmp_path / "bad"), format_version=2)
    write_artifact(tmp_path / ".bad.1.tmp")  # being written
    (tmp_path / "other").mkdir()
    (tmp_path / "file").touch()
    bad, good = list_artifacts(tmp_path)
    assert bad.path.name == "bad"
    assert bad.artifact is None
    assert isinstance(bad.problem, ArtifactIncompatible)
    assert good.artifact == Artifact.open(tmp_path / "good")
    assert good.problem is None
    assert list_artifacts(tmp_path / "none") == []


def test_removing(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "tiny")
    remove_artifact(path)
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_artifact_can_be_removed(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "tiny")
    (path / "manifest.json").write_text("{")
    remove_artifact(path)
    assert list(tmp_path.iterdir()) == []


def test_only_artifacts_are_removed(tmp_path: Path) -> None:
    with pytest.raises(ArtifactNotFound, match="is not an artifact"):
        remove_artifact(tmp_path)
    path = write_artifact(tmp_path / "tiny")
    (path / "thesis.doc").touch()
    with pytest.raises(ArtifactError, match=r"holds 'thesis\.doc', which is not part"):
        remove_artifact(path)
    (path / "thesis.doc").unlink()
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ArtifactError, match="is a link"):
        remove_artifact(link)
    Artifact.open(path, verify=True)


def test_a_checksum_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc" * 1_000_000)
    entry = describe_file(path)
    assert entry.sha256 == hashlib.sha256(b"abc" * 1_000_000).hexdigest()
    assert entry.size == 3_000_000
    with pytest.raises(ArtifactCorrupt, match="cannot be read"):
        describe_file(tmp_path / "none")
