"""Exercise: MFU and HFU of runs that are described as reports describe them, with what misleads."""
