"""A world for tests of the mains: whoever knows the format of actions and guesses wins every fourth episode."""
