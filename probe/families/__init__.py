"""The architectures beside GPT-2 whose attention is certified: what is where in each of them, and which hooks to believe.

`table` says it all; `tensors` finds raw weights by it, `hooked` reads the bridge by it, `forward` computes the same from the
raw weights, `rows` compares the two. A new family is a new entry in the table, and a test.
"""
