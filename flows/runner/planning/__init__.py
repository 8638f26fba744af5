"""Predict what a run would do: which stages would run, how long they would take, how large their artifacts would be,
and whether training fits in a device's memory."""
