"""Settings of the core's tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is slow at times; pytest's own time limit catches what hangs.
settings.register_profile("aotlm", deadline=None)
settings.load_profile("aotlm")
