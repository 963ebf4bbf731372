"""`aotlm artifacts`: list, show, verify and remove compiled models."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aotlm.artifact import (
    Artifact,
    ListedArtifact,
    build_root,
    find_artifact,
    list_artifacts,
    read_manifest,
    remove_artifact,
)
from aotlm.errors import ArtifactError

_EXAMPLES = """\
examples:
  aotlm artifacts                                  what has been compiled
  aotlm artifacts show smollm2-135m-gguf-cpu       one artifact's model, target and limits
  aotlm artifacts verify smollm2-135m-gguf-cpu     compare the checksums of all files
  aotlm artifacts remove smollm2-135m-gguf-cpu     delete it, after asking
  aotlm artifacts --json | jq '.[].name'
NAME is the name of a folder under the root, or the path of an artifact.
"""


def main(argv: Sequence[str]) -> int:
    """Run `aotlm artifacts ARGV...` and return the exit code."""
    arguments = _parser().parse_args(argv, argparse.Namespace(root=None, json=False))
    root: Path = arguments.root or build_root()
    if arguments.action in (None, "list"):
        return _list(root, arguments.json)
    path = find_artifact(arguments.name, root)
    run: Callable[[Path, argparse.Namespace], int] = arguments.run
    return run(path, arguments)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    # Without a default, or the sub-parser's would undo what stood before the action.
    common.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="folder of artifacts (default: $AOTLM_MODEL_LIBS, else model_libs/build)",
    )
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    parser = argparse.ArgumentParser(
        prog="aotlm artifacts",
        description="List, show, verify and remove compiled models.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", parents=[common], help="all artifacts (the default)")
    for name, run, text in (
        ("show", _show, "one artifact's model, target and limits"),
        ("verify", _verify, "compare the checksums of all files"),
        ("remove", _remove, "delete an artifact"),
    ):
        action = actions.add_parser(name, parents=[common], help=text)
        action.add_argument("name", metavar="NAME")
        action.set_defaults(run=run)
        if name == "remove":
            action.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def _list(root: Path, as_json: bool) -> int:
    listed = list_artifacts(root)
    if as_json:
        print(json.dumps([_summary(item) for item in listed], indent=2))
    elif not listed:
        print(f"no artifacts in {root}; make one with: aotlm compile MODEL")
    else:
        width = max(len(item.path.name) for item in listed)
        for item in listed:
            print(f"{item.path.name:{width}}  {_one_line(item)}")
    return 0


def _one_line(item: ListedArtifact) -> str:
    if item.artifact is None:
        return f"unusable: {item.problem}"
    manifest = item.artifact.manifest
    return (
        f"{_megabytes(item.artifact.size):>9}  context {manifest.limits.context_window}"
        f"  {manifest.quantization}  {manifest.target.level}  {manifest.created}"
    )


def _summary(item: ListedArtifact) -> dict[str, Any]:
    summary: dict[str, Any] = {"name": item.path.name, "path": str(item.path)}
    if item.artifact is None:
        return summary | {"usable": False, "problem": str(item.problem)}
    manifest = item.artifact.manifest
    return summary | {
        "usable": True,
        "model": manifest.model.name,
        "quantization": manifest.quantization,
        "target": manifest.target.level,
        "context_window": manifest.limits.context_window,
        "bytes": item.artifact.size,
        "created": manifest.created,
    }


def _show(path: Path, arguments: argparse.Namespace) -> int:
    manifest = read_manifest(path)  # also of one that this machine cannot run
    if arguments.json:
        print(manifest.to_json(), end="")
        return 0
    model, limits, target = manifest.model, manifest.limits, manifest.target
    rows = [
        ("path", str(path)),
        ("model", f"{model.name} ({model.family}, {model.num_layers} layers, "
                  f"hidden size {model.hidden_size}, vocabulary {model.vocab_size})"),
        ("source", f"{manifest.source.kind} {manifest.source.name}"),
        ("quantization", manifest.quantization),
        ("target", f"{target.triple} {target.level}"),
        ("CPU features", ", ".join(target.features) or "none beyond the base"),
        ("context", f"{limits.context_window} tokens (trained for {model.trained_context})"),
        ("batch", f"up to {limits.max_batch_size} sequences"),
        ("prefill", f"up to {limits.prefill_chunk} tokens a step"),
        ("made", f"{manifest.created} by "
                 + ", ".join(f"{name} {version}" for name, version in manifest.made_by.items())),
    ]  # fmt: skip
    rows += [(name, _megabytes(file.size)) for name, file in manifest.files.items()]
    try:
        Artifact.open(path)
    except ArtifactError as error:
        rows.append(("unusable", str(error)))
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        print(f"{label:{width}}  {value}")
    return 0


def _verify(path: Path, arguments: argparse.Namespace) -> int:
    artifact = Artifact.open(path, verify=True)
    count = len(artifact.manifest.files)
    if arguments.json:
        print(json.dumps({"name": artifact.name, "ok": True, "files": count}))
    else:
        print(f"{path}: all {count} files are as they were written")
    return 0


def _remove(path: Path, arguments: argparse.Namespace) -> int:
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise ArtifactError(f"{path} was not removed: add --yes, there is no terminal to ask")
        answer = input(f"Remove {path} and everything in it? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            print("not removed", file=sys.stderr)
            return 1
    remove_artifact(path)
    if arguments.json:
        print(json.dumps({"path": str(path), "removed": True}))
    else:
        print(f"removed {path}")
    return 0


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
