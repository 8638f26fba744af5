"""Modules of the four data stages, one package for each stage: `load` (load_data), `format` (format_prompts),
`tokenization` (tokenize_text) and `pack` (pack_chunks). The stages themselves are the modules `tasks.<stage>`.
"""
