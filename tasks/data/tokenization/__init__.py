"""What `tokenize_text` is made of: tokenizers, encoders, shards."""
