"""Garbage collection of a store: find what is still needed, move the rest to the trash, pin what must be kept."""
