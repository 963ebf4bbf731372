"""Checkpoints: one protocol, one reader a file format. Nothing here executes what it reads."""
