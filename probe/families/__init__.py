"""The architectures beside GPT-2 whose attention is certified: what is where in each of them, and which hooks to believe.

`table` says it all, in the words of `entry` and with the attentions of `stacks`. By it `tensors` finds the raw weights, `hooked`
reads the bridge, and `forward` and `ends` compute the same from the raw weights; `rows` compares the two, `trust` checks a
fresh model's hooks, `pairs` holds a source and a target text. A new family is a new entry in the table, and a test.
"""
