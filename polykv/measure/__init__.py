"""What K/V types cost and what they keep, measured: errors of a round trip, effect on a model, time.

    samples     vectors to measure on: normal, heavy-tailed, and the keys and values of a model
    corpus      many such vectors, to train a codebook on
    roundtrip   squared error and cosine after storing and reading
    quality     how far a model's predictions move
    choice      which pairs of types are worth their bytes
    speed       time to encode and to attend, against f16
    plot        error against bits, beside Shannon's bound
    timing      the fastest of several runs

Commands, benchmarks and notebooks share these; nothing that runs a model for its answers imports them.
"""
