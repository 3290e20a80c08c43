"""The small models that ship with the package, and the grammar and script that make them again."""
