"""What every page of probe shares: one file that asks for nothing, and a folder that is whole or absent.

output    a self-contained HTML file; page, tables and manifest -> files; can the folder be written?
terminal  what a command prints: tables, progress
"""
