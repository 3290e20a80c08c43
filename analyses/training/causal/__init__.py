"""tiny-senses: GPT-2's architecture, which reads from left to right."""
