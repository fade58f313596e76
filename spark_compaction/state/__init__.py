"""Tables of compacted topics: the last record of each key
(docs/design/history.md#tables-of-compacted-topics).
"""
