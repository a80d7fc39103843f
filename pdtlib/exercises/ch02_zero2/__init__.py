"""Exercise: ZeRO stage 2."""
