"""`kafscale sql`: Spark SQL with each topic a table. Imports neither trio nor the broker.

tokens      words, quoted names, comments; statements that Spark's parser would refuse
kafsql      KAFSQL's clauses, columns, functions and JOIN … WITHIN in Spark's spelling
topics      topics of the bucket, and as DataFrames; SHOW TOPICS, SHOW PARTITIONS
engine      from a statement to a DataFrame, by the plan of Spark's own parser
answers     rows as a table, CSV, JSON or Parquet; progress of reads
failures    Spark's errors in one line, and Ctrl-C
shell       statements from a terminal, with history
server      topics as tables of Spark's Thrift server
"""
