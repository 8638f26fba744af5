"""What a simple method, and the model before training, say of the rows that are evaluated."""
