"""What `pack_chunks` is made of: packers, layouts, chunk files."""
