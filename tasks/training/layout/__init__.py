"""Which part of each parameter and its optimizer state each rank holds."""
