"""Champions: freeze test rows, compare models on them, promote, roll back, and publish models."""
