"""Attention and cross-entropy."""
