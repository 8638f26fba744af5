"""The commands about finished models: freeze rows, promote, roll back."""
