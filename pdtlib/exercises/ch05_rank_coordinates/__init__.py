"""Exercise: from a rank to its coordinates in the mesh, back, and to its groups."""
