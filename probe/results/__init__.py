"""Results as pandas frames: tables of the measurements, and the meaning of every column.

columns, tables       the meaning of every column; tables as typed attributes
frames                the tables of a report
"""
