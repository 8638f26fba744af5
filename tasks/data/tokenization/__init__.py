"""Modules of the stage `tokenize_text`: reading and training tokenizers, encoding rows, and cutting rows into shards
(runs of consecutive rows that are tokenised and cached one by one).
"""
