"""Where a stage's process runs: a job spec goes in, events and a result come out."""
