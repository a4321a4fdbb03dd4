"""`kafscale sql`: Spark SQL with each topic a table. Imports neither trio nor the broker.

tokens.py         words, quoted names, comments; statements that Spark's parser refuses for certain clauses.py
LAST, TAIL and SCAN FULL behind a topic, and last() and tail() in place of a table kafsql.py         KAFSQL's columns,
functions and JOIN … WITHIN in Spark's spelling bucket_topics.py  the topics of the bucket, for either engine; SHOW
TOPICS and SHOW PARTITIONS tails.py          where the last records of a topic begin references.py     the topics that a
statement reads, found in the plan of Spark's own parser topics.py         topics as DataFrames, each with a `load()` of
its own engine.py         from a statement to a DataFrame answers.py        rows as a table, CSV, JSON or Parquet
progress.py       how much a statement reads, for EXPLAIN and while it runs failures.py       Spark's errors in one
line, and Ctrl-C shell.py          statements from a terminal, with history server.py         topics as tables of
Spark's Thrift server
"""
