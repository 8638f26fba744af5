"""Commands about a finished model: `predict`, freeze, promote and roll back; and how they find the model that a user names."""
