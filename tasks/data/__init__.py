"""The parts of the four data stages, one package for each stage: `load`, `format`, `tokenization` and `pack`."""
