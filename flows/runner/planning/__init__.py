"""Predict what a run would do: which stages would run, how long they would take, and whether training fits in memory."""
