"""Promotion: the stages that freeze rows and score a model on them, and the comparison of two models' scores."""
