"""Retraining: find out what changed, train, judge the new model, and promote it if it is surely better."""
