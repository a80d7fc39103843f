"""Exercise: a job for a model, a cluster and a budget of GPU-hours, with forecasts made before."""
