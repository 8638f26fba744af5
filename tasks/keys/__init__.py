"""Stage keys, by which a stage's earlier result is found: the key document, the hashes of the code that a stage imports,
the audit of the files that a stage reads, and the differences between two keys.

`hash_cache` remembers the digests of files that have not changed.
"""
