"""Training of GUI agents in JAX: see ARCHITECTURE.md for the map."""
