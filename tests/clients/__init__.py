"""The clients that people use, run against the real product."""
