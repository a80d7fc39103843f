"""From a job to what follows from it: memory, FLOPs, messages, schedules, times, plans, exports."""
