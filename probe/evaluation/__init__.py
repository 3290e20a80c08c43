"""How well each layer tells the senses of a word apart, beside what simple baselines reach: `probe evaluate`.

holdouts says which sentences are trained on and tested on, tasks reads the vectors, centroids and baselines answer, accuracy
counts, evaluate puts it together.
"""
