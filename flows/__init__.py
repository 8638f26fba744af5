"""Everything around the stages: recipes (the YAML files that describe runs), the stage runner, Prefect flows, the
command line. Only this folder imports Prefect."""
