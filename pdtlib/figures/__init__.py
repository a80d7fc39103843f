"""From the plan's objects to figures, as plain dicts, and to the sentences beside them."""
