"""Answers statements by an embedded DuckDB as Spark would, without a JVM. Nothing here imports pyspark.

DuckDB parses a statement; rules give its meaning. For each expression and clause a rule writes SQL with which DuckDB
answers as Spark does. A statement with something that no rule covers goes to Spark (`NotAlike`).

    engine         chooses DuckDB or Spark; from a statement to its rows
    parser         a statement in DuckDB's spelling, and the tree of DuckDB's parser
    kinds          types, as far as rules tell them apart, and meanings of names
    expressions    expressions; `functions` has literals and functions
    queries        SELECT, joins, common table expressions, set operations
    scans          a topic, or its totals from footers, as a data set: only what a statement needs
    texts          rows of a result as text and JSON, written as Spark writes them
"""
