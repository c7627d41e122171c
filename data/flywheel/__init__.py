"""Making trajectories and labels."""
