"""Stages of a rehearsal alone: a few rows, a small model, one answer."""
