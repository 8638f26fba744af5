"""Run a stage in a process of its own."""

# seconds that a stopped stage may take to save its state: a spot instance gets two minutes of notice
GRACE_SECONDS = 100.0
