"""What the data stages are made of: `load` (load_data), `format` (format_prompts), `tokenization` (tokenize_text),
`pack` (pack_chunks)."""
