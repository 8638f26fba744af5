"""Commands about a finished model: `predict`; and how they find the model that a user names."""
