"""A cluster in one machine: nodes that are namespaces, and links between them that are as slow as you say."""
