"""The virtual apps, one module each."""
