"""What the data stages are made of: sources, readers, labels, tokenizers, packers. No torch anywhere below."""
