"""Sweeps (`trnflow sweep`)."""
