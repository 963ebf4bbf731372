"""Print the lines of code per folder, and fail when a file has outgrown its noun.

    python -m tests.line_table

Lines that are blank or only a comment do not count.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("python", "compile", "server", "tests", "examples")
SUFFIXES = {".py": "#", ".cc": "//", ".h": "//"}
SOFT_LIMIT = 400  # lines, comments and blanks included: split the file by noun
HARD_LIMIT = 500


def source_files(repository: Path) -> Iterator[Path]:
    """Every source file of the repository's roots, in order."""
    for root in ROOTS:  # a root that is not there has no files
        for path in sorted((repository / root).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def count(path: Path) -> tuple[int, int]:
    """(lines of code, all lines) of one file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = SUFFIXES[path.suffix]
    code = sum(1 for line in lines if line.strip() and not line.strip().startswith(comment))
    return code, len(lines)


def main(repository: Path | None = None) -> int:
    """Print the table; 1 when a file is past the hard limit."""
    repository = repository or Path(__file__).resolve().parent.parent
    folders: dict[str, tuple[int, int]] = {}
    long_files: list[tuple[int, str]] = []
    for path in source_files(repository):
        code, total = count(path)
        folder = str(path.parent.relative_to(repository))
        files, lines = folders.get(folder, (0, 0))
        folders[folder] = (files + 1, lines + code)
        if total > SOFT_LIMIT:
            long_files.append((total, str(path.relative_to(repository))))

    width = max((len(folder) for folder in folders), default=6)
    print(f"{'folder':<{width}}  files  lines")
    for folder, (files, lines) in folders.items():
        print(f"{folder:<{width}}  {files:5}  {lines:5}")
    for root in ROOTS:
        if not (repository / root).is_dir():
            continue
        inside = [v for k, v in folders.items() if k == root or k.startswith(f"{root}/")]
        print(
            f"{root:<{width}}  {sum(f for f, _ in inside):5}  {sum(n for _, n in inside):5}  total"
        )

    for total, name in sorted(long_files, reverse=True):
        verdict = "TOO LONG" if total > HARD_LIMIT else "long"
        print(f"{verdict}: {name} has {total} lines; split it by noun", file=sys.stderr)
    return 1 if any(total > HARD_LIMIT for total, _ in long_files) else 0


if __name__ == "__main__":
    sys.exit(main())
