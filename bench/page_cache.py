"""Brings files into a state of the page cache and says in which they are. Linux, standard library only."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import machine

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
CACHESTAT = 451  # x86-64 and every other architecture but alpha, since Linux 6.5; the headers may be older
READ_BYTES = 16 << 20
RESIDENT_MIN, COLD_MAX, HALF_SLACK = 0.995, 0.01, 0.05


class WrongState(RuntimeError):
    """Files are not in the state that was asked for."""


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recent")]


def _by_cachestat(descriptor: int) -> int:
    counts, everything = _Counts(), _Range(0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(CACHESTAT, descriptor, ctypes.byref(everything), ctypes.byref(counts), 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(counts.cache)


def _by_mincore(descriptor: int, size: int) -> int:
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    # A private writable mapping, since ctypes takes addresses of writable buffers only; no page is touched.
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
        flags = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        first = ctypes.c_char.from_buffer(mapped)
        try:
            if mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), flags) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            del first
        return bytes(flags).translate(bytes(value & 1 for value in range(256))).count(1)


def resident_pages(path: str) -> tuple[int, int]:
    """(pages of the file in the page cache, pages that it has)."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return 0, 0
        try:
            resident = _by_cachestat(file.fileno())
        except OSError:  # an older kernel
            resident = _by_mincore(file.fileno(), size)
        return resident, -(-size // mmap.PAGESIZE)


def resident_part(paths: list[str]) -> float:
    """Of all pages of these files, the part in the page cache."""
    pages = [resident_pages(path) for path in paths]
    return sum(resident for resident, _ in pages) / max(sum(total for _, total in pages), 1)


def read(path: str, end: int | None = None) -> None:
    """Reads a file, or its first `end` bytes, into the page cache."""
    buffer = memoryview(bytearray(READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        if end is not None:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead beyond the end
        left = os.fstat(file.fileno()).st_size if end is None else end
        while left > 0:
            count = file.readinto(buffer[: min(left, READ_BYTES)])
            if not count:
                break
            left -= count


def drop(paths: list[str], *, whole_machine: bool = False) -> None:
    """Takes files out of the page cache; with `whole_machine` (root) everything else too."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # a dirty page stays
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if whole_machine:
        DROP_CACHES.write_text("3")


def bring(paths: list[str], state: str, *, whole_machine: bool = False) -> None:
    """Brings files into "warm", "cold", "half" (the first half of each is resident) or "tmpfs"."""
    if state == "warm":
        for path in paths:
            resident, total = resident_pages(path)
            if resident < total:
                read(path)
    elif state in ("cold", "half"):
        drop(paths, whole_machine=whole_machine)
        if state == "half":
            for path in paths:
                read(path, os.path.getsize(path) // 2)
    check(paths, state)


def check(paths: list[str], state: str) -> float:
    """The resident part; WrongState if it is not that of `state`."""
    part = resident_part(paths)
    fits = {
        "warm": part >= RESIDENT_MIN,
        "cold": part <= COLD_MAX,
        "half": abs(part - 0.5) <= HALF_SLACK,
        "any": True,  # as another process left them
        "tmpfs": all(machine.file_system(path) == "tmpfs" for path in paths),
    }
    if not fits[state]:
        raise WrongState(f"asked for {state}, and {part:.1%} of the pages are resident")
    return part
