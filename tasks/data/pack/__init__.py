"""Modules of the stage `pack_chunks`: placing token rows in chunks of a fixed length, and writing the chunks."""
