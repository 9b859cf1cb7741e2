"""The benchmark: collectives on several backends, interleaved, with checked results."""
