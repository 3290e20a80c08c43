"""What every page of probe shares: one file that asks for nothing, and a folder that is whole or absent.

html      charts placed in a page, the style sheet, the Vega bundle, the content security policy
folder    page, tables and manifest -> files; can the folder be written?
terminal  what a command prints: tables, progress
"""
