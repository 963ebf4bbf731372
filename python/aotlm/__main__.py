"""`python -m aotlm` is the `aotlm` command."""

from __future__ import annotations

import sys

from aotlm.cli import main

sys.exit(main())
