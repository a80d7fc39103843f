"""Exercise: an order of sends and receives that cannot deadlock."""
