"""Training without waiting for everyone: a parameter server, and workers that only meet now and then."""
