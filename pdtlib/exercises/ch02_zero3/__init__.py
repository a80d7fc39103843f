"""Exercise: ZeRO stage 3."""
