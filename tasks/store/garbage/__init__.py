"""Garbage collection of a store: find the files that are still needed, move all others to the trash, and let users pin
artifacts and runs that must be kept."""
