"""Promotion: the stages that freeze rows (keep a copy of test rows) and score a model on them, and the comparison of
two models' scores, which decides whether the newer model replaces the recipe's champion."""
