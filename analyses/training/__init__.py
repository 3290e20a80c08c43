"""The small models that ship with the package, and what makes them again.

`tiny-*` are the models, each a folder with its card. `causal`, `bidirectional` and `translator` hold the script that
trains one of them, what measures it and what writes its card: `PYTHONPATH=analyses python -m training.causal.train`,
and so on.

Shared by the first two: `grammar` with its tables (`grammar_*.toml`), `withheld` (what training must never see) and
`scoring`. Shared by all three: `templates` (tables to text), `wordpieces` (tokenizers), `training` and `cards`.
"""
