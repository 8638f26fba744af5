"""Sweeps (`trnflow sweep`): run a recipe with varied settings, and find those with the best validation metric."""
