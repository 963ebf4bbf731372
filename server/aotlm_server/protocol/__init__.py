"""Wire models: what a client may send and what it gets back, one file an endpoint."""
