"""`kafscale sql`: Spark SQL with each topic a table. Imports neither trio nor anything of the broker.

tokens.py      words, quoted names, comments; statements between semicolons
clauses.py     LAST, TAIL, SCAN FULL and WITHIN behind a topic, which Spark's grammar does not have
references.py  what a statement reads, found in the plan that Spark's own parser makes
topics.py      topics as DataFrames, each with a `load()` of its own
tails.py       where the last records of a topic begin
engine.py      from a statement to a DataFrame
formats.py     rows as a table, CSV, JSON or Parquet
shell.py       statements from a terminal, with history
"""
