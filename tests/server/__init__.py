"""Tests of the server, most of them with an engine that plays a script."""
