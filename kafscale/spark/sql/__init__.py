"""`kafscale sql`: Spark SQL with each topic a table. Imports neither trio nor anything of the broker.

answers.py     what a statement gives, by either engine
bucket_topics.py  what the bucket has, for either engine; `kafscale.spark.quick` is the other one
tokens.py      words, quoted names, comments; statements between semicolons
kafsql.py      columns and functions of KAFSQL by its names; joins.py: JOIN … WITHIN; segments.py: _segment
clauses.py     LAST, TAIL and SCAN FULL behind a topic, which Spark's grammar does not have
calls.py       last() and tail(), where tables stand
references.py  what a statement reads, found in the plan that Spark's own parser makes
topics.py      topics as DataFrames, each with a `load()` of its own
tails.py       where the last records of a topic begin
engine.py      from a statement to a DataFrame
estimates.py   what EXPLAIN tells of reads
formats.py     rows as a table, CSV, JSON or Parquet
interrupts.py  Ctrl-C
shell.py       statements from a terminal, with history
"""
