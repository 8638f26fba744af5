"""What evaluate_model is made of: models, batches, metrics, pictures and generations."""
