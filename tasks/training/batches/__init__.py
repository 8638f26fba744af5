"""Choose the rows of batches, read them, and read ahead."""
