"""From old chunks to new ones, axis by axis. Pure: sizes in, slices out.

An axis falls apart where old and new chunks have a boundary in common (`axis_units`). What lies between two such boundaries is independent of the rest, and so
is each combination of such pieces over all axes: only where several old chunks meet several new ones do pieces have to cross.
Sizes may be unknown (nan) along axes whose chunks stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Chunks = tuple[tuple[float, ...], ...]
Index = tuple[int, ...]


class Unit(NamedTuple):
    """A part of an axis: ranges of old and of new chunks."""

    old_start: int
    old_stop: int
    new_start: int
    new_stop: int


class Piece(NamedTuple):
    """A part of an old chunk: the new chunk that it belongs to, where it is in the old one, and its number among the pieces of the new one."""

    new: int
    where: slice
    number: int


def is_unknown(chunks: Sequence[float]) -> bool:
    """Whether an axis has chunks of unknown size."""
    return any(math.isnan(size) for size in chunks)


def check(old: Chunks, new: Chunks) -> None:
    """ValueError if there is no way from the one to the other; names the axis."""
    if len(old) != len(new):
        raise ValueError(f"cannot rechunk {len(old)} axes into {len(new)}")
    for axis, (before, after) in enumerate(zip(old, new, strict=True)):
        if is_unknown(before) or is_unknown(after):
            if len(before) != len(after) or not all(
                a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(before, after, strict=True)
            ):
                raise ValueError(
                    f"axis {axis} has chunks of unknown size, hence cannot be rechunked from {before} to {after}; call compute_chunk_sizes() before"
                )
        elif sum(before) != sum(after):
            raise ValueError(f"axis {axis} has {sum(before)} elements, chunks {after} are for {sum(after)}")


def axis_units(old: Sequence[float], new: Sequence[float]) -> list[Unit]:
    """Independent parts of one axis, in order. Each has at least one chunk of either kind."""
    if is_unknown(old):
        return [Unit(i, i + 1, i, i + 1) for i in range(len(old))]
    units: list[Unit] = []
    i = j = 0
    while i < len(old) and j < len(new):
        start = (i, j)
        before, after = old[i], new[j]
        i, j = i + 1, j + 1
        while before != after:
            if before < after:
                before += old[i]
                i += 1
            else:
                after += new[j]
                j += 1
        units.append(Unit(start[0], i, start[1], j))
    # empty chunks at the end
    last = units[-1]
    units[-1] = last._replace(old_stop=len(old), new_stop=len(new))
    return units


def axis_pieces(old: Sequence[float], new: Sequence[float]) -> list[list[Piece]]:
    """Pieces of each old chunk of one axis. Each new chunk gets at least one, if only an empty one, so that its kind is known."""
    if is_unknown(old):
        return [[Piece(i, slice(None), 0)] for i in range(len(old))]
    pieces: list[list[Piece]] = [[] for _ in old]
    starts = [0, *itertools.accumulate(map(int, old))]
    position = 0
    first = 0
    for j, size in enumerate(map(int, new)):
        stop = position + size
        # the first old chunk that reaches beyond the position, or the last one
        while first < len(old) - 1 and starts[first + 1] <= position:
            first += 1
        number = 0
        i = first
        while True:
            begin, end = max(position, starts[i]), min(stop, starts[i + 1])
            if end > begin or size == 0:
                where = slice(begin - starts[i], max(end, begin) - starts[i])
                pieces[i].append(Piece(j, where, number))
                number += 1
            if size == 0 or stop <= starts[i + 1]:
                break
            i += 1
        position = stop
    return pieces


def axis_offsets(old: Sequence[float], new: Sequence[float]) -> list[list[slice]]:
    """For each new chunk of one axis: where each of its pieces goes, by number."""
    if is_unknown(old):
        return [[slice(None)] for _ in new]
    offsets: list[list[slice]] = [[] for _ in new]
    filled = [0] * len(new)
    for pieces in axis_pieces(old, new):
        for piece in pieces:
            size = piece.where.stop - piece.where.start
            offsets[piece.new].append(slice(filled[piece.new], filled[piece.new] + size))
            filled[piece.new] += size
    return offsets


class Part(NamedTuple):
    """An independent part of a rechunk: a unit of each axis."""

    units: tuple[Unit, ...]

    @property
    def old_shape(self) -> Index:
        """Old chunks along each axis."""
        return tuple(unit.old_stop - unit.old_start for unit in self.units)

    @property
    def new_shape(self) -> Index:
        """New chunks along each axis."""
        return tuple(unit.new_stop - unit.new_start for unit in self.units)

    def old_indices(self) -> Iterator[Index]:
        """Old chunks, by their place in the whole array."""
        return itertools.product(*(range(unit.old_start, unit.old_stop) for unit in self.units))

    def new_indices(self) -> Iterator[Index]:
        """New chunks, by their place in the whole array."""
        return itertools.product(*(range(unit.new_start, unit.new_stop) for unit in self.units))

    def old_chunks(self, old: Chunks) -> Chunks:
        """Sizes of its old chunks."""
        return tuple(
            chunks[unit.old_start : unit.old_stop] for chunks, unit in zip(old, self.units, strict=True)
        )

    def new_chunks(self, new: Chunks) -> Chunks:
        """Sizes of its new chunks."""
        return tuple(
            chunks[unit.new_start : unit.new_stop] for chunks, unit in zip(new, self.units, strict=True)
        )


def parts(old: Chunks, new: Chunks) -> Iterator[Part]:
    """All independent parts of a rechunk."""
    units = [axis_units(before, after) for before, after in zip(old, new, strict=True)]
    return map(Part, itertools.product(*units))
