"""`aotlm compile` from the outside: real compiles of the tiny model, and bad input."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from aotlm.artifact import Artifact
from aotlm_compile.cli import main
from aotlm_compile.events import STEPS, Finished, StepFinished, StepStarted, from_line
from tests.compile.gguf_samples import write_llama
from tests.tiny_model import CHAT_TEMPLATE, CONFIG, random_weights, write_safetensors
from tests.tiny_model import write_tiny_model as write

COMMAND = (sys.executable, "-c", "import sys; from aotlm_compile.cli import main; sys.exit(main())")


def start(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """The command in a process group of its own, as a shell starts it."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )


def failure(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line on stderr of a command that must fail."""
    return failed_step(capsys, *arguments)[1]


def failed_step(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[str | None, str]:
    """The step a command must fail in (None: before the first), and its one line on stderr."""
    assert main([*map(str, arguments), "--progress", "json"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    events = [from_line(line) for line in output.err.splitlines()]
    lines = [line for line in output.err.splitlines() if from_line(line) is None]
    assert len(lines) == 1
    assert lines[0].startswith("aotlm compile: ")
    steps = [event.step for event in events if isinstance(event, StepStarted)]
    return (steps[-1] if steps else None), lines[0].removeprefix("aotlm compile: ")


def test_artifact_holds_the_model(tiny_artifact: Path, tiny_model: Path) -> None:
    artifact = Artifact.open(tiny_artifact, verify=True)
    manifest = artifact.manifest
    assert manifest.source.kind == "safetensors"
    assert manifest.model.name == manifest.source.name == "tiny"
    assert manifest.quantization == "q4f32_1"
    assert (manifest.model.num_layers, manifest.model.vocab_size) == (2, 320)
    limits = manifest.limits
    assert (limits.context_window, limits.prefill_chunk, limits.max_batch_size) == (512, 32, 8)
    assert (manifest.tokens.bos_id, manifest.tokens.eos_ids) == (1, (2, 0))
    assert manifest.generation.given() == {"temperature": 0.7, "top_p": 0.9}
    assert set(manifest.made_by) == {"aotlm", "tvm", "tvm_ffi"}
    assert artifact.chat_template_path is not None
    assert artifact.chat_template_path.read_text() == CHAT_TEMPLATE
    tokenizer = Tokenizer.from_file(str(artifact.tokenizer_path))
    original = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    text = "<|im_start|>the quick fox 🙂<|im_end|>"
    assert tokenizer.encode(text).ids == original.encode(text).ids


def test_up_to_date_artifact_is_reused_until_something_changes(
    tiny_artifact: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = (tiny_artifact / "model.so").stat().st_mtime_ns
    sizes = ("--context-window", "512", "--prefill-chunk", "32", "--max-batch-size", "8")
    same = (str(tiny_model), "-o", str(tiny_artifact), *sizes)
    assert main(same) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[-1] == str(tiny_artifact)
    assert "up to date" in output.err
    assert (tiny_artifact / "model.so").stat().st_mtime_ns == made
    for changed in (
        ("--force",),
        ("--opt", "1"),
        ("--max-batch-size", "4"),
        ("--quantization", "q0f32"),
        ("--target", "cpu:plain"),
    ):
        assert main([*same, *changed, "--dry-run"]) == 0
        assert capsys.readouterr().out.splitlines()[-1].split() == ["would", "be", "compiled"]
    assert main([*same, "--dry-run"]) == 0
    assert "reused: it is up to date" in capsys.readouterr().out


def test_damaged_artifact_is_not_reused(
    tiny_artifact: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    sizes = ("--context-window", "512", "--prefill-chunk", "32", "--max-batch-size", "8")
    arguments = [str(tiny_model), "-o", str(copy), *sizes, "--dry-run"]
    for file in ("weights.bin", "manifest.json"):
        shutil.copytree(tiny_artifact, copy)
        assert main(arguments) == 0
        assert "reused" in capsys.readouterr().out
        os.truncate(copy / file, 100)
        assert main(arguments) == 0
        assert "reused" not in capsys.readouterr().out
        shutil.rmtree(copy)


def test_two_at_once_make_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny", config={"num_hidden_layers": 1})
    output = tmp_path / "out" / "artifact"
    both = [start(folder, "-o", output, "--opt", "0", "--progress", "json") for _ in range(2)]
    results = [process.communicate(timeout=90) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert [out.splitlines()[-1] for out, _ in results] == [str(output)] * 2
    events = [[from_line(line) for line in err.splitlines()] for _, err in results]
    finished = [event for lines in events for event in lines if isinstance(event, Finished)]
    assert sorted(event.reused for event in finished) == [False, True]
    steps = [event.step for lines in events for event in lines if isinstance(event, StepFinished)]
    assert steps == list(STEPS)
    Artifact.open(output, verify=True)
    assert list(output.parent.iterdir()) == [output]


def test_killed_command_takes_its_worker_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That a kill of both leaves nothing that loads is tested on the real model, in tests/e2e."""
    folder = write(tmp_path / "tiny", config={"num_hidden_layers": 1})
    output = tmp_path / "out" / "artifact"
    process = start(folder, "-o", output, "--opt", "0")
    deadline = time.monotonic() + 60
    while not list(output.parent.glob(".*.tmp/weights.bin")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not output.exists()
    # The worker inherited the lock: this waits until it is gone, too.
    assert main([str(folder), "-o", str(output), "--opt", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(output)
    Artifact.open(output, verify=True)
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_removes_what_is_half_written(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    folder = write(tmp_path / "tiny")
    output = tmp_path / "out" / "artifact"
    process = start(folder, "-o", output, "--progress", "json")
    assert process.stderr is not None
    assert "read" in process.stderr.readline()
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    assert list(output.parent.iterdir()) == []


def test_no_linker_says_what_to_install_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "tiny", config={"num_hidden_layers": 1})
    output = tmp_path / "out" / "artifact"
    for path, compiler, named in (
        (str(tmp_path), "", "c++, g++, clang++ not found"),
        (os.environ["PATH"], "no-such-c++", "no-such-c++ not found"),
    ):
        monkeypatch.setenv("PATH", path)
        monkeypatch.setenv("CXX", compiler)
        step, message = failed_step(capsys, folder, "-o", output)
        assert step == "read"
        assert message.startswith(f"no C++ compiler to link with ({named})")
        assert "apt-get install g++" in message
        assert list(output.parent.iterdir()) == []


def test_objects_to_link_lie_in_the_folder_that_the_next_compile_removes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "tiny", config={"num_hidden_layers": 1})
    output = tmp_path / "out" / "artifact"
    seen = tmp_path / "seen"
    linker = tmp_path / "linker"
    linker.write_text(f'#!/bin/sh\necho "$@" >> {seen}\nexec c++ "$@"\n')
    linker.chmod(0o755)
    monkeypatch.setenv("CXX", str(linker))
    assert main([str(folder), "-o", str(output), "--opt", "0"]) == 0
    capsys.readouterr()
    objects = [word for word in seen.read_text().split() if word.endswith(".o")]
    assert objects
    for path in objects:
        assert re.match(rf"{re.escape(str(output.parent))}/\.artifact\.\d+\.tmp/", path)
    names = {path.name for path in output.iterdir()}
    assert names == {*Artifact.open(output).manifest.files, "manifest.json"}
    linker.write_text('#!/bin/sh\necho "ld: no room" >&2\nexit 1\n')
    message = failure(capsys, folder, "-o", output, "--opt", "0", "--force")
    assert message.startswith(f"linking {output.parent}/.artifact.")
    assert message.endswith(f"model.so with {linker} failed: ld: no room")


def test_full_disk_names_the_place(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: write() fails alike, without a name."""
    folder = write(tmp_path / "tiny", config={"num_hidden_layers": 1})
    output = tmp_path / "out" / "artifact"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
    result = subprocess.run(
        [*COMMAND[:2], limit + COMMAND[2], str(folder), "-o", str(output)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"aotlm compile: cannot write {output}: {os.strerror(errno.EFBIG)}"
    )
    assert list(output.parent.iterdir()) == []


def test_bad_models_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_llama(tmp_path / "whole.gguf", "Q4_1")
    write_llama(tmp_path / "q5.gguf", "Q5_1")
    content = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[: len(content) // 2])
    for name, message in (
        ("smollm9", "unknown recipe 'smollm9'; known: smollm2-135m"),
        ("none.gguf", "none.gguf does not exist"),
        ("./none", "none does not exist"),
        ("cut.gguf", "cut.gguf: tensor "),
        ("q5.gguf", "has type Q5_1, which is not supported; supported: F32"),
    ):
        assert message in failure(capsys, name)
    assert "truncated or damaged" in failure(capsys, "cut.gguf")
    assert not (tmp_path / "model_libs").exists()


def test_what_is_wrong_with_a_model_is_told_before_weights_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out" / "artifact"
    xyz = write(tmp_path / "xyz", config={"model_type": "xyz", "architectures": ["Xyz"]})
    chat = write(tmp_path / "chat")
    settings = json.loads((chat / "tokenizer_config.json").read_text())
    settings["chat_template"] = "hello\n{% for m in messages %}{{ m.content }"
    (chat / "tokenizer_config.json").write_text(json.dumps(settings))
    lacking = write(tmp_path / "lacking")
    weights = random_weights(CONFIG, 0)
    up = weights.pop("model.layers.1.mlp.up_proj.weight")
    write_safetensors(lacking / "model.safetensors", weights)
    misshapen = write(tmp_path / "misshapen")
    weights["model.layers.1.mlp.up_proj.weight"] = up[:-1]
    write_safetensors(misshapen / "model.safetensors", weights)
    for folder, at, part in (
        (xyz, "read", "'xyz' is not supported; supported: llama"),
        (chat, "read", f"the chat template of {chat} "),
        (lacking, "build", "tensor 'model.layers.1.mlp.up_proj.weight' is missing from"),
        (misshapen, "build", "mlp.up_proj.weight should make [192, 64]"),
    ):
        step, message = failed_step(capsys, folder, "-o", output)
        assert step == at
        assert part in message
        assert list(output.parent.iterdir()) == []


def test_bad_options_are_one_line(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").touch()
    for arguments, message in (
        (("--quantization", "q9"), "unknown quantization 'q9'; this version has: gguf, q0f32"),
        (("--quantization", "gguf"), "the source is safetensors; choose one of: q0f32, q4f32_1"),
        (("--target", "tpu"), "unknown target 'tpu'; this version compiles for: cpu"),
        (("--context-window", "513"), "--context-window 513 is more than 512, what the model was"),
        (("-o", tmp_path), "holds other files than an artifact"),
        (("-o", tmp_path / "notes.txt"), "notes.txt is a file"),
        (("-o", tmp_path / "notes.txt" / "x"), "notes.txt"),
    ):
        assert message in failure(capsys, tiny_model, *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x", "--opt", "4"],
        ["x", "--context-window", "0"],
        ["x", "--context-window", "many"],
        ["x", "--max-batch-size", "100000"],
        ["x", "--nonsense"],
    ],
)
def test_wrong_usage_ends_with_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: aotlm compile MODEL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--context-window", "abc", "'abc' is not a number"),
        ("--prefill-chunk", "1.5", "'1.5' is not a number"),
        ("--context-window", "1", "1 is not in 16..1048576"),
        ("--max-batch-size", "0", "0 is not in 1..256"),
    ],
)
def test_wrong_numbers_are_told(
    flag: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["x", flag, value])
    assert capsys.readouterr().err.endswith(f"error: argument {flag}: {message}\n")


def test_reader_that_leaves_is_no_error() -> None:
    """As in `aotlm compile --list | head -1`, with an unbuffered stdout: it fails in print()."""
    script = (
        "import sys; from importlib.metadata import EntryPoint; from aotlm import cli; "
        "entry = EntryPoint('compile', 'aotlm_compile.cli:main', cli.GROUP); "
        "cli._commands = lambda: {'compile': entry}; "
        "sys.exit(cli.main(['compile', '--list']))"
    )
    with subprocess.Popen(
        [sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for part in ("examples:", "aotlm compile smollm2-135m", "--prefill-chunk", "--dry-run"):
        assert part in text


def test_list_and_dry_run_need_no_tvm(tiny_artifact: Path, tiny_model: Path) -> None:
    script = (
        "import sys; from aotlm_compile.cli import main; "
        "assert main(['--list']) == 0; assert main([sys.argv[1], '--dry-run']) == 0; "
        "assert 'tvm' not in sys.modules"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tiny_model)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "AOTLM_MODEL_LIBS": str(tiny_artifact.parent)},
    )
    assert result.returncode == 0, result.stderr
    for part in ("smollm2-135m", tiny_artifact.name, "q4f32_1", "cpu:plain", "2 layers of 64"):
        assert part in result.stdout
    assert str(tiny_artifact.parent / "tiny-q4f32_1-cpu") in result.stdout


def test_gguf_keeps_its_values_and_gets_its_folder_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOTLM_MODEL_LIBS", str(tmp_path / "libs"))
    write_llama(tmp_path / "My Tiny (v2).Q4_1.gguf", "Q4_1")
    assert main([str(tmp_path / "My Tiny (v2).Q4_1.gguf"), "--progress", "json"]) == 0
    output = capsys.readouterr()
    path = Path(output.out.splitlines()[-1])
    assert path == tmp_path / "libs" / "my-tiny-v2-.q4_1-gguf-cpu"
    artifact = Artifact.open(path, verify=True)
    assert artifact.manifest.quantization == "gguf"
    assert artifact.manifest.limits.context_window == 512
    events = [json.loads(line) for line in output.err.splitlines()]
    assert [e["step"] for e in events if e["event"] == "step_finished"] == list(STEPS)
    assert events[-1] == {"event": "finished", "path": str(path), "reused": False}
