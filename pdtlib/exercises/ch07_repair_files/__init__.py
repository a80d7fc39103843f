"""Exercise: repair five broken DeepSpeed files."""
