"""How objects are cut into pages, the unit that is loaded, kept and owned (docs/design/read-path.md#pages).
Pure.

A segment is one page, because its readers want most of it at once. A merged segment, a history file, and any
object larger than `max_page_bytes`, is cut into aligned pages of `history_page_bytes`, so that a reader of
one partition need not load others.

Promises:
- The ranges of `ranges_of` cover the request exactly, without overlaps.
- Agents with the same settings cut in the same way. With different settings a page is loaded twice, and no
  wrong byte is read.
"""

from typing import NamedTuple

from storage.identifiers import ObjectKey
from storage.segments.keys import is_history_file, is_merged


class PageKey(NamedTuple):
    object_key: ObjectKey
    number: int

    @property
    def ring_key(self) -> str:
        """The key for the ring. For a first page it is the object's key, which a segment's writer chose to
        own."""
        return f"{self.object_key}/{self.number}" if self.number else self.object_key


class PageRange(NamedTuple):
    """The bytes `[start, end)` of an object, all in one page. The page has the object's bytes `[page_start,
    page_end)`."""

    page: PageKey
    object_size_bytes: int
    page_start: int
    page_end: int
    start: int
    end: int

    @property
    def page_bytes(self) -> int:
        return self.page_end - self.page_start

    def of(self, page: memoryview) -> memoryview:
        """Cuts the range from its page's bytes."""
        return page[self.start - self.page_start : self.end - self.page_start]


class PageLayout:
    def __init__(self, max_page_bytes: int, history_page_bytes: int) -> None:
        self._max_page_bytes = max_page_bytes
        self._history_page_bytes = history_page_bytes

    def is_whole(self, key: ObjectKey, object_size_bytes: int) -> bool:
        """True if the object is one page."""
        is_cut = is_merged(key) or is_history_file(key)
        return object_size_bytes <= self._max_page_bytes and not is_cut

    def ranges_of(self, key: ObjectKey, object_size_bytes: int, start: int, end: int) -> list[PageRange]:
        """Cuts `[start, end)`, which is not empty, at the borders of pages. Returns the pieces in order."""
        if self.is_whole(key, object_size_bytes):
            return [PageRange(PageKey(key, 0), object_size_bytes, 0, object_size_bytes, start, end)]
        size_bytes, ranges = self._history_page_bytes, []
        for number in range(start // size_bytes, (end - 1) // size_bytes + 1):
            page_start = number * size_bytes
            page_end = min(page_start + size_bytes, object_size_bytes)
            ranges.append(
                PageRange(
                    PageKey(key, number),
                    object_size_bytes,
                    page_start,
                    page_end,
                    max(start, page_start),
                    min(end, page_end),
                )
            )
        return ranges
