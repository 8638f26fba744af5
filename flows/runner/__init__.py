"""Run the stages of a pipeline: look up each stage's key in the store, and run the stages that have no result there."""
