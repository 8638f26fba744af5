"""Keys: key documents, code hashes, the audit of files that a stage reads, and differences between key documents."""
