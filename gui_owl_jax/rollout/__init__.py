"""Sampling engine and agent loop."""
