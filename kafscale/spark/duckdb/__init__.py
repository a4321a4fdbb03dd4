"""Answers statements by an embedded DuckDB as Spark would, without a JVM. Nothing here imports pyspark.

DuckDB parses a statement; rules give its meaning. For each expression and clause a rule writes SQL with which DuckDB
answers as Spark does. A statement with something that no rule covers goes to Spark (`NotAlike`).

choice.py       which engine answers: DuckDB or Spark parser.py       a statement in DuckDB's spelling, and the tree of
DuckDB's parser kinds.py        types, as far as rules tell them apart, and their names in Spark scopes.py       what
names mean expressions.py  expressions; literals.py and functions.py: parts of them queries.py      SELECT, joins,
common table expressions, set operations references.py   topics, last() and tail(), as DuckDB scans them scans.py
a topic as a data set: only the columns and the offsets that a statement needs totals.py       counts, offsets and times
from footers texts.py        rows of a result, as text and as JSON, written as Spark writes them engine.py       from a
statement to its rows
"""
