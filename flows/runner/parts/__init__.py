"""Run a stage in parts, such as 2 MiB of text that tokenize_text tokenizes; those in the store are not made again."""
