"""Statements that an embedded DuckDB answers as Spark would, without a JVM. Nothing here imports pyspark.

DuckDB parses a statement; what it means is decided here. For each expression and clause there is a rule, which says in
which words DuckDB answers it as Spark does. What has no rule is left to Spark (`NotAlike`), and DuckDB is given nothing
but SQL that rules have written.

choice.py       which engine answers: this one, or Spark
errors.py       what is left to Spark
words.py        Spark's tokens in DuckDB's spelling
tree.py         the tree of DuckDB's parser
kinds.py        types, as far as rules tell them apart
scopes.py       what names mean
expressions.py  expressions; constants.py, comparisons.py and functions.py: parts of them
queries.py      SELECT, joins, common table expressions, set operations
references.py   topics, last() and tail(), as DuckDB scans them
bounds.py       DuckDB's conditions on a scan, as bounds of what is read
scans.py        a topic as a data set: only the columns and the offsets that a statement needs
texts.py        values as Spark writes them, as text and as JSON; spark_types.py: names of types
answers.py      rows of a result
engine.py       from a statement to its rows
"""
