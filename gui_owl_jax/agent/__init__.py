"""What an agent sees, says and does; imports no JAX."""
