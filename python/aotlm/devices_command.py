"""`aotlm devices`: this machine's CPU and which device runtimes this build has."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from aotlm.cpu_features import Cpu, read_cpu

_EXAMPLES = """\
examples:
  aotlm devices
  aotlm devices --json | jq -r '.cpu.features[]'
"""

# What kernels are written for; the many others would only hide them.
_NOTABLE = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "asimddp",
    "asimdhp",
    "i8mm",
    "bf16",
    "sve",
)


@dataclass(frozen=True, slots=True)
class Runtime:
    """A kind of device, and whether this build can run models on it."""

    kind: str
    usable: bool
    note: str


RUNTIMES = (
    Runtime("cpu", True, "usable"),
    Runtime("cuda", False, "not built into this version"),
    Runtime("vulkan", False, "not built into this version"),
    Runtime("metal", False, "not built into this version"),
)


def main(argv: Sequence[str]) -> int:
    """Run `aotlm devices ARGV...` and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="aotlm devices",
        description="Show this machine's CPU and what else models can run on.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    cpu = read_cpu()
    if arguments.json:
        print(json.dumps(_as_json(cpu), indent=2))
    else:
        print("\n".join(_lines(cpu)))
    return 0


def _lines(cpu: Cpu) -> list[str]:
    notable = [name for name in _NOTABLE if name in cpu.features]
    return [
        f"CPU       {cpu.model}",
        f"cores     {cpu.physical_cores} ({cpu.logical_cores} threads)",
        f"level     {cpu.level}",
        f"features  {', '.join(notable) or 'none that matter here'}",
        "",
        *(f"{runtime.kind:8}  {runtime.note}" for runtime in RUNTIMES),
    ]


def _as_json(cpu: Cpu) -> dict[str, object]:
    return {
        "cpu": {**asdict(cpu), "level": cpu.level, "features": sorted(cpu.features)},
        "runtimes": [asdict(runtime) for runtime in RUNTIMES],
    }
