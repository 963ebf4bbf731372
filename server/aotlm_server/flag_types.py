"""Types of flags that several commands have, for argparse."""

from __future__ import annotations

import argparse


def http_url(text: str) -> str:
    """A URL that an HTTP client can use, without a slash at its end."""
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} must begin with http:// or https://")
    return text.rstrip("/")


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
