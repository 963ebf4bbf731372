"""Tensor programs of aotlm, written in TVM's TIR, one kernel family a file."""
