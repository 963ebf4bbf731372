"""From what the user typed to a loaded model: which artifact is taken, when to compile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotlm import artifact
from aotlm.artifact import (
    Artifact,
    FileEntry,
    Limits,
    ListedArtifact,
    Manifest,
    ModelInfo,
    SourceInfo,
    TargetInfo,
    TokenInfo,
)
from aotlm.errors import ArtifactCorrupt
from aotlm.model_text import load_text
from aotlm_server import compiling
from aotlm_server.cli import main
from tests.server.live_server import make_tokenizer_file

PLAIN = TargetInfo("cpu", "x86_64-linux-gnu", "x86-64-v1")
_FILES = ("model.so", "weights.bin", "tokenizer.json", "chat_template.jinja")
MANIFEST = Manifest(
    created="2026-01-01T00:00:00+00:00",
    made_by={"aotlm": "0", "tvm": "0", "tvm_ffi": "0"},
    source=SourceInfo("gguf", "m", "f"),
    model=ModelInfo("m", "llama", 300, 8, 1, 1, 1, 8, 64, 64),
    quantization="gguf",
    target=PLAIN,
    limits=Limits(64, 16, 2, 16),
    weights=(),
    tokens=TokenInfo(bos_id=None, eos_ids=(), add_bos=False),
    files={name: FileEntry("0" * 64, 0) for name in _FILES},
)


def _compiler(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let `program` stand for the compiler; nothing is found without it."""
    monkeypatch.setattr(compiling, "_COMPILER", program)
    monkeypatch.setattr(artifact, "list_artifacts", lambda root: [])


async def test_a_path_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _compiler(monkeypatch, "raise SystemExit(9)")
    (tmp_path / "manifest.json").touch()
    assert await compiling.find_or_compile(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("left", ["model.so", "weights.bin"])
@pytest.mark.parametrize("by_name", [False, True])
async def test_an_artifact_without_a_manifest_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, by_name: bool
) -> None:
    _compiler(monkeypatch, "raise SystemExit(9)")
    monkeypatch.setattr(compiling, "build_root", lambda: tmp_path)
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / left).touch()
    with pytest.raises(ArtifactCorrupt, match=r"broken is a damaged artifact: .*manifest\.json"):
        await compiling.find_or_compile("broken" if by_name else str(folder))


async def test_a_model_name_takes_the_fittest_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = replace(PLAIN, level="x86-64-v4", features=("avx512f",))
    manifests = {
        "old": replace(MANIFEST, target=fast),
        "new": replace(MANIFEST, target=fast, created="2026-02-01T00:00:00+00:00"),
        "plain": replace(MANIFEST, created="2026-03-01T00:00:00+00:00"),
        "other": replace(MANIFEST, model=replace(MANIFEST.model, name="o"), target=fast),
    }
    listed = [ListedArtifact(p := Path(n), Artifact(p, m)) for n, m in manifests.items()]
    listed.append(ListedArtifact(Path("bad"), None, ArtifactCorrupt("truncated")))
    monkeypatch.setattr(artifact, "list_artifacts", lambda root: listed)
    assert await compiling.find_or_compile("m") == Path("new")


async def test_the_compiler_says_where_the_artifact_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _compiler(monkeypatch, "import sys; print('noise'); print('/made/' + sys.argv[1])")
    assert await compiling.find_or_compile("thing") == Path("/made/thing")
    captured = capfd.readouterr()
    assert "'thing'" in captured.err
    assert captured.out == ""


def test_a_failed_compile_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _compiler(monkeypatch, "raise SystemExit('aotlm compile: unknown recipe')")
    assert main(["thing", "--port", "0"]) == 1
    error = capfd.readouterr().err.splitlines()
    assert error[-1] == "aotlm compile: unknown recipe"
    assert len(error) == 2

    _compiler(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    assert main(["thing", "--port", "0"]) == 1
    assert "signal 9" in capfd.readouterr().err.splitlines()[-1]


def test_template_knows_the_special_tokens_by_their_roles(tmp_path: Path) -> None:
    make_tokenizer_file(tmp_path / "tokenizer.json")
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}")
    probe = load_text(Artifact(tmp_path, MANIFEST))[0]
    start, end = probe.token_to_id("<|im_start|>"), probe.token_to_id("<|im_end|>")
    assert end is not None
    manifest = replace(MANIFEST, tokens=TokenInfo(start, (end,), add_bos=True))
    conversation = load_text(Artifact(tmp_path, manifest))[1]
    assert conversation.render([]) == "<|im_start|><|im_end|>"


def test_without_a_template_it_is_chatml(tmp_path: Path) -> None:
    make_tokenizer_file(tmp_path / "tokenizer.json")
    files = {name: MANIFEST.files[name] for name in _FILES[:3]}
    _, conversation = load_text(Artifact(tmp_path, replace(MANIFEST, files=files)))
    assert conversation.stop_strings == ("<|im_end|>",)
