"""Train state, optimizer, steps, checkpoints and metrics."""
