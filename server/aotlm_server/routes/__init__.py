"""HTTP endpoints: each reads a body, walks the pipeline and writes an answer."""
