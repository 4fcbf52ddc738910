"""The zip archive that torch.save() writes: which bytes of the file are which record.

Nothing of a record is read here but what the caller asks for. The central directory is not believed until the
local header of a record says the same.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from typing import NamedTuple

from inrush import _errors

# Of a local header, before the name: signature, version, flags, method, time, date, checksum, stored and full
# size, lengths of the name and of the padding after it.
_LOCAL_HEADER = struct.Struct("<IHHHHHIIIHH")
_LOCAL_SIGNATURE = 0x04034B50
_ARCHIVE_BEGIN = b"PK\x03\x04"
_ENCRYPTED = 0x1
_SIZES_FOLLOW = 0x8  # behind the data: the local header need not have them
_SIZE_ELSEWHERE = 0xFFFFFFFF  # in the zip64 field

_FOREIGN = (
    (b"version https://git-lfs", "a pointer of git-lfs: fetch the file itself (git lfs pull)"),
    (b"<", "a page of the web or XML: download the file again"),
    (b"\x89HDF", "an HDF5 file"),
)
_LEGACY = (
    "no zip archive of torch.save(). If torch before 1.6 wrote it, or _use_new_zipfile_serialization=False, "
    "read it once by torch.load() and write it anew by torch.save()"
)


class Place(NamedTuple):
    """Where an archive lies: bytes [start, start + nbytes) of a file."""

    path: str
    start: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.path} [{self.start}, {self.start + self.nbytes})" if self.start else self.path


class Record(NamedTuple):
    """One record: its name without the archive's folder, where its first byte is in the file, its size."""

    name: str
    offset: int
    nbytes: int


class Source:
    """An open file that is read by position, and what it was when it was opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # A pipe would wait here for a writer.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            code = (
                "not_found" if isinstance(error, (FileNotFoundError, PermissionError)) else "storage_failed"
            )
            raise _errors.make_error(code, f"{path}: {error.strerror}", error.errno or 0) from error
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise _errors.make_error("invalid_request", f"{path}: it is not a regular file")
        # Headers are small and far apart: reading ahead would fetch weights that the engine reads itself.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        self.identity = _identity(status)

    @property
    def nbytes(self) -> int:
        return self.identity[2]

    def read(self, offset: int, nbytes: int) -> bytes:
        """All of these bytes, or those until the end of the file."""
        parts = []
        while nbytes > 0:
            try:
                part = os.pread(self._fd, min(nbytes, 1 << 30), offset)
            except OSError as error:
                raise _errors.make_error(
                    "storage_failed",
                    f"{self.path}: reading [{offset}, {offset + nbytes}) failed: {error.strerror}",
                    error.errno or 0,
                ) from error
            if not part:
                break
            parts.append(part)
            offset += len(part)
            nbytes -= len(part)
        return b"".join(parts)

    def refuse_changed(self) -> None:
        """What stands at the path now must be the file that was opened, as it was then."""
        refuse_changed(self.path, self.identity)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Identity = tuple[int, int, int, int, int]


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def identity_of(path: str) -> Identity | None:
    """Equal as long as the path leads to the same file and nobody wrote to it; None: there is no file."""
    try:
        return _identity(os.stat(path))
    except OSError:
        return None


def refuse_changed(path: str, identity: Identity | None) -> None:
    if identity is None or identity_of(path) != identity:
        raise _errors.make_error(
            "corrupt_checkpoint",
            f"{path}: the file changed while it was read; load it again once nobody writes to it",
        )


class _Window(io.RawIOBase):
    """The bytes of an archive as a file of their own."""

    def __init__(self, source: Source, place: Place) -> None:
        self._source = source
        self._place = place
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._place.nbytes}[whence]
        if base + offset < 0:
            raise ValueError("a position before the archive")
        self._at = base + offset
        return self._at

    def read(self, nbytes: int | None = -1, /) -> bytes:
        left = max(self._place.nbytes - self._at, 0)
        wanted = left if nbytes is None or nbytes < 0 else min(nbytes, left)
        data = self._source.read(self._place.start + self._at, wanted)
        self._at += len(data)
        return data


class Archive:
    """The records of one archive, by name. Raises "corrupt_checkpoint" for one that lies or is cut."""

    def __init__(self, source: Source, place: Place) -> None:
        self.place = place
        self._source = source
        self._refuse_foreign()
        try:
            with zipfile.ZipFile(_Window(source, place)) as directory:
                entries = directory.infolist()
                self._data_end = directory.start_dir
        except (zipfile.BadZipFile, ValueError, struct.error, EOFError, NotImplementedError) as error:
            raise self._corrupt(f"the directory at its end is not readable ({error}): was it cut?") from error
        self.records = self._checked(entries)

    def read(self, name: str) -> bytes:
        """All bytes of a record."""
        record = self.records.get(name)
        if record is None:
            raise self._corrupt(f"it has no record {name!r}")
        data = self._source.read(record.offset, record.nbytes)
        if len(data) != record.nbytes:
            raise self._corrupt(f"record {name!r} ends early")
        return data

    def _corrupt(self, message: str) -> _errors.Error:
        return _errors.make_error("corrupt_checkpoint", f"{self.place}: {message}")

    def _refuse_foreign(self) -> None:
        begin = self._source.read(self.place.start, min(self.place.nbytes, 32))
        if begin.startswith(_ARCHIVE_BEGIN):
            return
        if not begin:
            raise self._corrupt("it is empty")
        for start, what in _FOREIGN:
            if begin.startswith(start):
                raise self._corrupt(f"it is {what}")
        if begin[8:9] == b"{":
            raise _errors.make_error(
                "invalid_request", f"{self.place}: it looks like safetensors: inrush.torch.load() reads those"
            )
        raise _errors.make_error("invalid_request", f"{self.place}: it is {_LEGACY}")

    def _checked(self, entries: list[zipfile.ZipInfo]) -> dict[str, Record]:
        if not entries:
            raise self._corrupt("its directory is empty")
        # torch takes the folder of the first entry for that of all.
        folder, slash, _ = entries[0].filename.partition("/")
        records: dict[str, Record] = {}
        end, last = 0, ""
        for entry in sorted(entries, key=lambda entry: entry.header_offset):
            name = entry.filename.removeprefix(folder + slash)
            if name in records:
                raise self._corrupt(f"it has record {name!r} twice")
            if entry.header_offset < end:
                raise self._corrupt(f"records {last!r} and {name!r} overlap at {entry.header_offset}")
            record = self._located(name, entry)
            end, last = record.offset + record.nbytes - self.place.start, name
            records[name] = record
        return records

    def _located(self, name: str, entry: zipfile.ZipInfo) -> Record:
        """Where the bytes of an entry are, as its local header says too."""
        at = entry.header_offset
        if "\0" in entry.orig_filename:
            raise self._corrupt(f"record {entry.orig_filename!r} has no proper name")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
            raise self._corrupt(f"record {name!r} is compressed or encrypted, which torch.save() never does")
        if entry.compress_size != entry.file_size:
            raise self._corrupt(
                f"record {name!r} has sizes {entry.compress_size} and {entry.file_size} at once"
            )
        stated = entry.orig_filename.encode("utf-8" if entry.flag_bits & 0x800 else "cp437")
        header = b""
        if 0 <= at < self._data_end:
            header = self._source.read(self.place.start + at, _LOCAL_HEADER.size + len(stated))
        if len(header) < _LOCAL_HEADER.size + len(stated):
            raise self._corrupt(f"record {name!r} should begin at {at}, outside of the archive")
        if not _agrees(header, entry, stated):
            raise self._corrupt(f"record {name!r}: its header at {at} is not what the directory says")
        padding_bytes = _LOCAL_HEADER.unpack_from(header)[10]
        begin = at + len(header) + padding_bytes
        if begin + entry.file_size > self._data_end:
            raise self._corrupt(
                f"record {name!r} should be at [{begin}, {begin + entry.file_size}), beyond the end of the "
                f"data at {self._data_end}: the file is cut or damaged"
            )
        return Record(name, self.place.start + begin, entry.file_size)


def _agrees(header: bytes, entry: zipfile.ZipInfo, name: bytes) -> bool:
    signature, _, flags, method, _, _, _, stored_bytes, full_bytes, name_bytes, _ = _LOCAL_HEADER.unpack_from(
        header
    )
    sizes = {entry.file_size, _SIZE_ELSEWHERE} | ({0} if flags & _SIZES_FOLLOW else set())
    return (
        signature == _LOCAL_SIGNATURE
        and method == zipfile.ZIP_STORED
        and not flags & _ENCRYPTED
        and name_bytes == len(name)
        and header[_LOCAL_HEADER.size :] == name
        and stored_bytes in sizes
        and full_bytes in sizes
    )
