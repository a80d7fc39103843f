"""Runs that outlive their workers: finding a failure, bringing a run back, and faults to try both on."""
