"""Exercise: a run that saves, fails and restarts, and how often it should save."""
