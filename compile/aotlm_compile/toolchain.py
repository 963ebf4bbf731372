"""The C++ compiler that links libraries."""

from __future__ import annotations

import os
import shutil

from aotlm.errors import ToolchainError


def find_linker() -> str:
    """CXX, else the first of c++, g++, clang++. Raises ToolchainError when there is none."""
    compiler = os.environ.get("CXX") or next(
        (found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None
    )
    if compiler is None or shutil.which(compiler) is None:
        raise ToolchainError(
            f"no C++ compiler to link with ({compiler or 'c++, g++, clang++'} not found): "
            "install one (Debian: apt-get install g++) or set CXX"
        )
    return compiler
