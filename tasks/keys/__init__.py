"""Stage keys, by which a stage's earlier result is found in the store: the key document (the JSON of which the key is
the hash), the hashes of the code that a stage imports, the audit of the files that a stage reads, and the differences
between two key documents.

`hash_cache` remembers the digests of files that have not changed.
"""
