"""CPU kernels.

All are written with 16-lane vectors. A level with narrower registers splits them: LLVM does
that, so one text serves every level, and only the integer dot product differs (`dot.py`).
Kernels are scheduled by hand: they carry `tirx.is_scheduled` and are left alone by passes.
"""
