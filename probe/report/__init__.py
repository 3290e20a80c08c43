"""A study as a folder that a reader opens: sentences from verdicts, charts, one page, its tables and what made them.

answers    frames -> the sentences that may be said
sections   frames -> the values of the page's sections
excerpts   frames -> the sentences of the study as tokens and marks
page       values and templates -> one HTML file
folder     page, tables and manifest -> files
"""

from probe.report.folder import check_folder, tables, write_report

__all__ = ["check_folder", "tables", "write_report"]
