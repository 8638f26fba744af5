"""Find the exact bytes that a path, a URL or a name on the Hugging Face hub in a recipe stands for, before any stage
runs."""
