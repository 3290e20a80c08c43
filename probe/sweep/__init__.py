"""The measurements of a study over a corpus of any size, in files that survive whatever kills the
process.

deal       rows in, blocks of rows out: every row in exactly one, each word's sentences parted by
           hashes
measure    pass one: the axes, own directions and donors of a word; pass two: the tables of one
           block of rows
shards     files that are whole or absent, receipts, one writer at a time
work       one unit of either pass, made in this process or by the workers of Dask
run        the sweep: rows, pass one, pass two, manifest; how far it has come
summary    shards to frames
"""
