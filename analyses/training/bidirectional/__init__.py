"""tiny-senses-bidirectional: BERT's architecture, which reads both sides of a word."""
