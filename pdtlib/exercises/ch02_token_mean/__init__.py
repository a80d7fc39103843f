"""Exercise: the mean over tokens, however the batch is cut."""
