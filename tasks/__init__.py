"""The nine stages and the machinery below them: plain functions that know neither Prefect nor flows."""
