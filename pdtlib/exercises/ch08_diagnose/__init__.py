"""Exercise: name the fault of a step from its trace."""
