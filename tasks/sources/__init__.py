"""Find the exact bytes that a path, a URL or a hub name in a recipe stands for, before any stage runs."""
