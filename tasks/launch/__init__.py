"""Run a stage in a process: from a job spec, which describes the call, to the stage's events and its result."""

GRACE_SECONDS = 100.0
"""How long a stage that is stopped may take to save its state: less than the two minutes between the notice and the end
of a spot instance."""
