"""The scripts that train the small models that ship with the package.

The packages `causal`, `bidirectional` and `translator` each train, evaluate and describe one model:
`PYTHONPATH=analyses python -m training.causal.train`, and so on. Each model is a folder with its card.

The first two share `grammar` with its tables (`grammar_*.toml`), `withheld` (the text that training must never contain)
and `scoring`. All three share `templates` (from tables to text), `wordpieces` (tokenizers), `training` and `cards`.
"""
