"""The studies: choose words, measure, conclude, return. `study` is about single words, `survey`
about words in general; `workers` measures words on several processors or machines."""
