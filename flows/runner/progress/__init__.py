"""Follow a running stage by the events that it reports: write its metrics to a file, and estimate when it will be
done."""
