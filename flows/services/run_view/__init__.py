"""Show a run on Prefect's pages: its stages as task runs, tables of results, its plan, its progress and its name."""
