"""What a real run held, sent and took, and how far that is from the plan."""
