"""How objects are cut into pages: the pieces tile the request, and pages are where every agent expects
them.
"""

from hypothesis import given
from hypothesis import strategies as st

from cache_ring.pages.page_layout import PageKey, PageLayout
from storage.identifiers import new_segment_id
from storage.segments.keys import merged_key, segment_key

SEGMENT, MERGED = segment_key("tidelog", new_segment_id()), merged_key("tidelog", new_segment_id())


@given(st.sampled_from([SEGMENT, MERGED]), st.integers(1, 500), st.data())
def test_ranges_tile_the_request_each_within_its_page(key: str, size: int, data: st.DataObject) -> None:
    layout = PageLayout(max_page_bytes=200, history_page_bytes=64)
    start = data.draw(st.integers(0, size - 1))
    end = data.draw(st.integers(start + 1, size))
    content = bytes(number % 251 for number in range(size))

    ranges = layout.ranges_of(key, size, start, end)  # type: ignore[arg-type]

    cut = [bytes(each.of(memoryview(content)[each.page_start : each.page_end])) for each in ranges]
    assert b"".join(cut) == content[start:end]
    for each in ranges:
        assert 0 <= each.page_start <= each.start < each.end <= each.page_end <= size
        whole = key == SEGMENT and size <= 200
        assert each.page_start == (0 if whole else each.page.number * 64)
        assert each.page_end == (size if whole else min(size, each.page_start + 64))
        assert each.object_size_bytes == size


def test_a_segments_page_has_the_owner_of_the_segments_key() -> None:
    assert PageKey(SEGMENT, 0).ring_key == SEGMENT
    assert PageKey(MERGED, 3).ring_key == f"{MERGED}/3"
