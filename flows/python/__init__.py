"""What `import trnflow` gives: recipes, runs and models for scripts and notebooks, over the commands' own plan and run."""
