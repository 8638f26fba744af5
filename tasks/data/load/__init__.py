"""What `load_data` is made of: readers, columns, labels, splits, duplicates, limits, mixtures."""
