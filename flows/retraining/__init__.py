"""Retraining: find out whether a recipe changed, train it again, judge the model, promote or keep."""
