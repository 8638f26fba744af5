"""Garbage collection of a store: find the files that are still needed, move the others to the trash, and pin what must
stay."""
