"""The commands about trained models, and the function that finds the model which a user names."""
