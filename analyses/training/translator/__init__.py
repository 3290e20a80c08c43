"""tiny-translator: an encoder and a decoder, which put English into French."""
