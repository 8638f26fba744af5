"""Two commits of this project compared on one machine, and faults planted in its code."""
