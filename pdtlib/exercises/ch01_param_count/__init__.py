"""Exercise: count the parameters of GPT and Llama."""
