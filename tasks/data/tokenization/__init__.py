"""The parts of the stage `tokenize_text`: reading and training tokenizers, encoding rows, and cutting rows into shards."""
