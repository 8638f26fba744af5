"""The parts of the stage `consolidate`."""
