"""Layers that model families are built of: TVM modules around our kernels."""
