"""What surrounds every request: its id, its log line, and its errors."""
