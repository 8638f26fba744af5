"""The commands about runs in progress: `runs` lists them and past runs, `status` lists the stages that run now, `logs`
prints the logs of a run."""
