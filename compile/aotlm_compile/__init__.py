"""The compiler: checkpoint in, artifact out. No HTTP, no engine."""
