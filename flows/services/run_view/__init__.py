"""What Prefect shows of a run: the stages as task runs, tables, the plan, the progress, the run's name."""
