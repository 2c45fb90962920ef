"""Where K/V lives: compressed, in blocks, shared by all sequences of one model.

codecs/        the tiers: constants and tables of every K or V type
blocks.py      which blocks are used, shared, cached or free (ints only)
pool.py        the arrays, grouped by attention window; every byte figure comes from them
sequence.py    tokens and block tables of one sequence: extend, commit, fork, trim, attach
reuse.py       the longest prefix of a prompt that is still cached
segments.py    what the rows of a step read, common blocks once for all sequences
identity.py    what K/V belongs to: model, tier, table, rope
plan.py        what a cache will cost
persist.py     saved pools, on top of container.py (checksummed safetensors)
regroup.py     blocks of a saved file as blocks of another size
"""
