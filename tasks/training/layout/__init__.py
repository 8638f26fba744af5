"""Which part of each parameter, and of its optimizer state, a rank holds."""
