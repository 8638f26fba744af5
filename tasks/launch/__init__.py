"""Where a stage's process runs: a job spec goes in, events and a result come out."""

GRACE_SECONDS = 100.0
"""How long a stage that is stopped may take to save its state: less than the two minutes that a spot instance gives."""
