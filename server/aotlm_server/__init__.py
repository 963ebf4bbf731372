"""The server: HTTP in, HTTP out. No compiler, no tensors."""
