"""The commands about runs in progress: `runs` (past runs, too), `status` and `logs`."""
