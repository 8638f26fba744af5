"""What an evaluation says in words: the main metric beside the baseline's, and up to three causes with what helps."""
