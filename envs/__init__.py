"""Environments and their pool."""
