"""The task templates of the virtual world, one module per device family."""
