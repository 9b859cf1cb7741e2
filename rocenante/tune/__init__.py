"""`rocenante tune`: measures where all_reduce should go over from one step to two."""
