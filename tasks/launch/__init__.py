"""Run a stage in a process of its own: pass a job spec, a file that describes the call, to the process, and receive the
stage's events (progress, metrics, messages) and its result."""

GRACE_SECONDS = 100.0
"""Default number of seconds that a stage that is stopped may take to save its state: less than the two minutes between
the notice and the end of a spot instance."""
