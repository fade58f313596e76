"""Kernels: compiled once, loaded without numba, and the same as their Python source."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.batches import batch_kernels
from storage.batches.batch_validation import span_row
from storage.batches.record_batch import HEADER_BYTES, read_header
from storage.native import kernels
from storage.native.arguments import BYTES_IN
from storage.native.kernels import Kernel
from tests.storage.builders import ARecord, a_batch

_SOURCE = """
from storage.native.arguments import BYTES_IN, LONG, LONGS_OUT
from storage.native.kernels import helper, kernel


@helper
def _twice(value):
    return {factor} * value


@kernel(BYTES_IN, LONG, LONGS_OUT)
def total(data, first, found):
    found[0] = _twice(first)
    for index in range(len(data)):
        found[0] += data[index]
    return found[0]
"""

_PROGRAM = """
import sys, numpy, kernels
found = numpy.zeros(1, numpy.int64)
kernels.total(numpy.ones(3, numpy.uint8), 10, found)
print(found[0], "numba" in sys.modules)
"""

_RECORDS = st.lists(
    st.builds(
        ARecord,
        key=st.none() | st.binary(max_size=90),
        value=st.none() | st.binary(max_size=90),
        headers=st.lists(
            st.tuples(st.text(max_size=3).map(str.encode) | st.binary(max_size=3), st.binary(max_size=3))
        ),
        timestamp_delta=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 1000),
        offset_delta=st.none() | st.integers(-(2**31), 2**31 - 1),
    ),
    min_size=1,
    max_size=4,
)


def interpreted(kernel: Kernel, *arguments: Any) -> int:
    with np.errstate(over="ignore"):  # both wrap around
        return int(kernel.interpreted(*arguments))


def both(kernel: Kernel, inputs: Sequence[Any], out: Callable[[], Any]) -> list[tuple[int, list[Any]]]:
    """Returns what the machine code and the Python code return and write."""
    results = []
    runs: tuple[Callable[..., int], ...] = (kernel, partial(interpreted, kernel))
    for run in runs:
        written = out()
        results.append((run(*inputs, written), written.tolist()))
    return results


@given(records=_RECORDS, noise=st.none() | st.tuples(st.integers(0, 400), st.integers(0, 255)))
@settings(max_examples=150, deadline=None)
def test_compiled_and_interpreted_kernels_find_the_same(
    records: list[ARecord], noise: tuple[int, int] | None
) -> None:
    batch = bytearray(a_batch(*records, max_timestamp_ms=0, last_offset_delta=len(records) - 1))
    header = read_header(batch)
    plain = np.frombuffer(batch, np.uint8)[HEADER_BYTES:]
    if noise is not None:
        plain[noise[0] % len(plain)] = noise[1]
    spans = np.array([span_row(header, 0, len(plain), 0)], np.int64)

    compiled, python = both(
        batch_kernels.scan_spans, (plain, spans), lambda: np.zeros(batch_kernels.FINDINGS, np.int64)
    )
    assert compiled == python
    if compiled[0] == batch_kernels.SOUND:
        compiled, python = both(
            batch_kernels.timestamps_outside, (plain, spans, 0, 500), lambda: np.zeros((2, 2), np.int64)
        )
        assert compiled == python
        compiled, python = both(batch_kernels.null_keys, (plain, spans), lambda: np.full(2, -1, np.int64))
        assert compiled == python
        compiled, python = both(
            batch_kernels.judge_keys, (plain, spans, np.ones(1, np.int64)), lambda: np.ones(1, np.int64)
        )
        assert compiled == python


@given(cuts=st.lists(st.integers(1, 200), max_size=3), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_compiled_and_interpreted_kernels_walk_alike(cuts: list[int], seed: int) -> None:
    data = np.frombuffer(b"".join(a_batch(ARecord(value=bytes(cut))) for cut in cuts), np.uint8).copy()
    if seed % 2 and len(data):
        data[random.Random(seed).randrange(len(data))] ^= 1 << seed % 8

    count = batch_kernels.count_batches(data, 0, len(data))

    assert count == interpreted(batch_kernels.count_batches, data, 0, len(data))
    if count >= 0:
        compiled, python = both(
            batch_kernels.place_batches, (data, 0), lambda: np.zeros((count, 3), np.int64)
        )
        assert compiled == python


@pytest.mark.parametrize(
    "data",
    [np.zeros(4, np.int8), np.zeros((2, 2), np.uint8), np.zeros(8, np.uint8)[::2]],
    ids=["type", "shape", "gaps"],
)
def test_arguments_of_another_kind_are_refused(data: Any) -> None:
    with pytest.raises(TypeError, match="is not Array"):
        batch_kernels.count_batches(data, 0, 4)


def test_a_kernel_does_not_write_into_what_is_read_only() -> None:
    found = np.zeros(batch_kernels.FINDINGS, np.int64)
    found.flags.writeable = False
    with pytest.raises(TypeError):
        batch_kernels.scan_spans(np.zeros(1, np.uint8), np.zeros((1, 8), np.int64), found)


def test_a_kernel_on_given_arrays_sees_what_is_in_them_now() -> None:
    data = np.zeros(128, np.uint8)
    count = batch_kernels.count_batches.on(data, 0, 122)
    before = count()

    data[11] = data[61 + 11] = 61 - 12

    assert (before, count()) == (-1, 2)


def test_a_missing_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        batch_kernels.count_batches(np.zeros(1, np.uint8), 0)


def _total(directory: Path) -> tuple[int, bool]:
    """Returns what a new process finds, and whether it compiled."""
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYTHONPATH": f"{directory}:{Path.cwd()}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found, compiled = ended.stdout.split()
    return int(found), compiled == "True"


def test_a_kernel_is_compiled_once_for_each_source(tmp_path: Path) -> None:
    source = tmp_path / "kernels.py"

    source.write_text(_SOURCE.format(factor=2))
    assert _total(tmp_path) == (23, True)
    assert _total(tmp_path) == (23, False)
    source.write_text(_SOURCE.format(factor=3))
    assert _total(tmp_path) == (33, True)
    (tmp_path / "other_kernels.py").write_text("CONSTANT = 1")  # its constants would be in the machine code
    assert _total(tmp_path) == (33, True)


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(_SOURCE.format(factor=2))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(_total, [tmp_path] * 4))

    assert sorted(found) == [(23, False)] * 3 + [(23, True)]


def test_a_kernel_is_compiled_again_when_a_constant_of_another_module_changed(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("from columns import FACTOR\n" + _SOURCE.format(factor="FACTOR"))

    for factor, compiles in ((2, True), (2, False), (10, True)):
        (tmp_path / "columns.py").write_text(f"FACTOR = {factor}")
        assert _total(tmp_path) == (10 * factor + 3, compiles)


def test_a_kernel_that_allocates_is_refused() -> None:
    def allocates(data: Any) -> Any:
        return len(data.copy())

    with pytest.raises(ValueError, match="allocates or raises"):
        kernels.kernel(BYTES_IN)(allocates)
