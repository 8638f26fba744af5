"""Platforms: where a job can run, each by its own programs."""
