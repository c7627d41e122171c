"""MRPO as pure functional transforms."""
