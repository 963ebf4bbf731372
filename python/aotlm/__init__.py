"""Run ahead-of-time compiled language models in process: no HTTP, no compiler."""
