"""What is misconfigured for training on several ranks, and how to mend it: ``pdt doctor``."""
