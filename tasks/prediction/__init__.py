"""Predict with a trained model: shape rows as in training, run the model, write the predictions."""
