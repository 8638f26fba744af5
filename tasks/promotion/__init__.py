"""Promotion: the stages that freeze rows and score models on them, and the comparison of two models."""
