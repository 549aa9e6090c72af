"""Any old and new chunks: applying the plan piece by piece gives numpy's array, and independent parts do not meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed.shuffle._core import ShuffleId
from distributed.shuffle._rechunk import ArrayRechunkSpec
from distributed.shuffle._rechunk_plan import axis_pieces, axis_units, check, parts

Chunks = tuple[tuple[int, ...], ...]


@st.composite
def axes(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Old and new sizes with the same sum; empty chunks anywhere."""
    total = draw(st.integers(0, 12))

    def cut() -> tuple[int, ...]:
        cuts = sorted(draw(st.lists(st.integers(0, total), max_size=5)))
        return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))

    return cut(), cut()


def blocks(x: Any, chunks: Chunks) -> dict[tuple[int, ...], Any]:
    bounds = [np.cumsum([0, *sizes]) for sizes in chunks]
    return {
        index: x[tuple(slice(b[i], b[i + 1]) for b, i in zip(bounds, index, strict=True))]
        for index in np.ndindex(*(len(sizes) for sizes in chunks))
    }


@given(axes())
def test_units_cover_an_axis(axis: Any) -> None:
    old, new = axis
    units = axis_units(old, new)
    assert [i for u in units for i in range(u.old_start, u.old_stop)] == list(range(len(old)))
    assert [i for u in units for i in range(u.new_start, u.new_stop)] == list(range(len(new)))
    for u in units:
        assert u.old_stop > u.old_start and u.new_stop > u.new_start
        assert sum(old[u.old_start : u.old_stop]) == sum(new[u.new_start : u.new_stop])
    # a boundary inside a unit is not one of the other kind, unless next to an empty chunk
    if 0 not in old and 0 not in new:
        for u in units:
            inner_old = {sum(old[:i]) for i in range(u.old_start + 1, u.old_stop)}
            inner_new = {sum(new[:i]) for i in range(u.new_start + 1, u.new_stop)}
            assert not inner_old & inner_new


@given(axes())
def test_pieces_of_an_axis(axis: Any) -> None:
    old, new = axis
    x = np.arange(sum(old))
    inputs = blocks(x, (old,))
    found: dict[int, dict[int, Any]] = {}
    for i, pieces in enumerate(axis_pieces(old, new)):
        for piece in pieces:
            numbers = found.setdefault(piece.new, {})
            assert piece.number not in numbers
            numbers[piece.number] = inputs[(i,)][piece.where]
    assert sorted(found) == list(range(len(new))), "each new chunk has a piece"
    for j, expected in blocks(x, (new,)).items():
        pieces = found[j[0]]
        assert sorted(pieces) == list(range(len(pieces)))
        assert np.concatenate([pieces[k] for k in sorted(pieces)]).tolist() == expected.tolist()


@given(
    st.lists(axes(), min_size=1, max_size=3), st.integers(1, 3), st.sampled_from(["i4", "f8", "M8[ns]", "U3"])
)
def test_parts_of_an_array(all_axes: Any, n_workers: int, dtype: str) -> None:
    old = tuple(axis[0] for axis in all_axes)
    new = tuple(axis[1] for axis in all_axes)
    shape = tuple(sum(sizes) for sizes in old)
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    inputs, expected = blocks(x, old), blocks(x, new)
    results = {}
    for part in parts(old, new):
        spec = ArrayRechunkSpec(
            id=ShuffleId("s"), disk=True, new=part.new_chunks(new), old=part.old_chunks(old)
        )
        codec = spec.codec()
        outputs = list(spec.output_partitions)
        worker_for = {output: f"w{i % n_workers}" for i, output in enumerate(outputs)}
        received: dict[str, list[Any]] = {}
        for local, index in zip(np.ndindex(part.old_shape), part.old_indices(), strict=True):
            for worker, shard in codec.shard(inputs[index], local, worker_for).items():
                assert codec.sizeof(shard) >= 0
                received.setdefault(worker, []).append(shard)
        stores = {worker: codec.split(shards) for worker, shards in received.items()}
        for local, index in zip(np.ndindex(part.new_shape), part.new_indices(), strict=True):
            piece, nbytes = stores[worker_for[local]][local]
            # as from disk
            piece = codec.load(memoryview(codec.dump(piece)))
            result = codec.assemble(local, [piece])
            assert result.dtype == x.dtype and nbytes == result.nbytes
            results[index] = result
    assert results.keys() == expected.keys()
    for index, result in results.items():
        np.testing.assert_array_equal(result, expected[index])


def test_what_stays_is_alone() -> None:
    old, new = ((2, 3, 4), (5, 5)), ((2, 3, 4), (10,))
    assert [(p.old_shape, p.new_shape) for p in parts(old, new)] == [((1, 2), (1, 1))] * 3
    nan = float("nan")
    assert [(p.old_shape, p.new_shape) for p in parts(((nan, nan), (4, 4)), ((nan, nan), (2, 6)))] == [
        ((1, 2), (1, 2))
    ] * 2


def test_refusals_name_the_axis() -> None:
    nan = float("nan")
    with pytest.raises(ValueError, match="axis 1 has chunks of unknown size"):
        check(((4,), (nan, nan)), ((4,), (8,)))
    with pytest.raises(ValueError, match="axis 0 has 4 elements"):
        check(((4,),), ((5,),))
    with pytest.raises(ValueError, match="1 axes into 2"):
        check(((4,),), ((2, 2), (1,)))
    check(((4,), (nan, nan)), ((2, 2), (nan, nan)))
