"""The folder that knows Prefect: recipes, the stage runner, the flows and the command line."""
