"""Messages of a topic for pages: read in bounded parts, filtered, shown as text, and downloaded.

`query` is where a page begins; `reading` scans partitions, `filters` and `showing` look at single messages.
"""
