"""Exercise: ZeRO stage 1."""
