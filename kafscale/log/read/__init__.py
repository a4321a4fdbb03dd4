"""Read a partition, from memory or from the bucket by one ranged GET. Entered by `reader.LogReader`."""
