"""The parts of the stage `consolidate`, which writes the trained model as a Hugging Face folder: published names of
weights, keys for older versions, generation settings, tokenizer, model card, and the check of the folder."""
