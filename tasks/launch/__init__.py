"""Run a stage in a process of its own: pass it a job spec, receive its events and its result."""

GRACE_SECONDS = 100.0
"""Seconds that a stopped stage may take to save its state: less than a spot instance's two minutes of notice."""
