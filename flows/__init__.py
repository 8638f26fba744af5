"""Everything around the stages: recipes, the runner, Prefect flows, the command line. Only this folder imports Prefect."""
