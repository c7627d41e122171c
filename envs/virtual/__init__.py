"""Virtual apps as pure functions."""
