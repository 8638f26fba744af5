"""What `consolidate` writes into a Hugging Face folder beside the weights."""
