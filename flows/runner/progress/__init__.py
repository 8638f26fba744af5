"""What a running stage reports: the metrics of training in a file, and when its work will be done."""
