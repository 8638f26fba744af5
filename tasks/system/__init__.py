"""The machine, the home and secrets. Imports nothing of this project but `errors`."""
