"""Tasks of interactive benchmarks in one description, and the evaluators that need no live site."""
