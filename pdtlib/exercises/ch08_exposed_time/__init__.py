"""Exercise: exposed communication of a step, by unions of intervals."""
