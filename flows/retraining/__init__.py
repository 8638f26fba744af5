"""Retraining: find out whether a recipe or its data changed, train it again, compare the new model with the champion
(the model that the recipe's users get), and make the new model the champion if it is better."""
