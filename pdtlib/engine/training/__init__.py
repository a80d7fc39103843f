"""From a job to a run directory: checks, launch, the loop, what it writes, and how it ends when it fails."""
