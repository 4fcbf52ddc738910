"""Where the bytes of tensors come from: an open file, or the content of one in memory."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from inrush import _inrush, _loads
from inrush._inrush import Checkpoint, TensorInfo
from inrush.safetensors import _errors

_log = logging.getLogger("inrush")

_LENGTH_BYTES = 8  # the length of the header, in front of it
_HEADER = "Error while deserializing header: "  # words that users of the reference look for


class File:
    """A file that was opened and validated. It stays open while its handle or a slice of it lives.

    What is read by its descriptor is of the file whose header was validated, whatever has its name by then.
    """

    def __init__(self, path: Any) -> None:
        self._descriptor = -1
        self._has_told = False
        self._descriptor = _open(path)
        status = os.fstat(self._descriptor)
        self._identity = _identity(status)
        self._ctime_ns = status.st_ctime_ns
        with _errors.adapted(_HEADER):
            self.checkpoint = _loads.open_checkpoint(path)
        self._require_one_file(path)

    def _require_one_file(self, path: Any) -> None:
        files = self.checkpoint.files
        if len(files) != 1 or not os.path.samefile(files[0].path, path):
            raise _errors.make_error(
                "invalid_request",
                f"{os.fsdecode(path)}: is no .safetensors file: pass a list of its files, or use inrush.load",
            )
        self._require_same(os.stat(path))  # the header was read by another descriptor than ours

    def _require_same(self, status: os.stat_result) -> None:
        if _identity(status) != self._identity:
            raise _errors.make_error(
                "corrupt_checkpoint",
                f"{self.checkpoint.path}: was written to or replaced while it was open: open it again",
            )

    def is_in_place(self) -> bool:
        """Whether a load, which opens the file by name and compares its ctime, finds it unchanged."""
        try:
            status = os.stat(self.checkpoint.path)
        except OSError:
            return self._told_that_it_moved()
        if _identity(status) == self._identity and status.st_ctime_ns == self._ctime_ns:
            return True
        return self._told_that_it_moved()

    def _told_that_it_moved(self) -> bool:
        if not self._has_told:
            self._has_told = True
            _log.warning(
                "%s: no load but one read a tensor: its name leads elsewhere, or its mode, owner or links "
                "changed while it was open",
                self.checkpoint.path,
            )
        return False

    def alone(self, info: TensorInfo) -> Checkpoint:
        """A checkpoint of this tensor only: to load one of many takes no longer than to load the only one."""
        path = os.fsencode(info.file)
        place = (info.name, info.dtype, info.shape, 0, info.offset)
        checkpoint = _inrush.describe_checkpoint(path, [path], [place])
        self._require_same(os.stat(path))  # what it describes is what was validated
        return checkpoint

    def read(self, info: TensorInfo, offset: int, nbytes: int) -> bytearray:
        """Bytes [offset, offset + nbytes) of a tensor."""
        data = bytearray(nbytes)
        rest = memoryview(data)
        start = info.offset + offset
        while rest:
            try:
                count = os.preadv(self._descriptor, [rest], start)
            except OSError as error:
                raise _errors.make_error(
                    "storage_failed",
                    f"{info.file}: tensor {info.name!r}: reading {len(rest)} bytes at {start}: "
                    f"{error.strerror}: check the disk",
                    error.errno or 0,
                ) from None
            if count == 0:
                raise _errors.make_error(
                    "corrupt_checkpoint",
                    f"{info.file}: ends at byte {start}, inside tensor {info.name!r}: it was cut while open",
                )
            start += count
            rest = rest[count:]
        self._require_same(os.fstat(self._descriptor))
        return data

    def metadata(self) -> dict[str, str] | None:
        """`__metadata__`; None where the header has none, or null."""
        file = self.checkpoint.files[0]
        if file.metadata:
            return file.metadata
        header = os.pread(self._descriptor, file.data_offset - _LENGTH_BYTES, _LENGTH_BYTES)
        if b"__metadata__" not in header:
            return None
        found: dict[str, str] | None = json.loads(header).get("__metadata__")
        return found

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _open(path: Any) -> int:
    try:
        # O_NONBLOCK: to open a FIFO would wait for its writer; reads of files are what they are without.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        code, message = "not_found", f"No such file or directory: {os.fsdecode(path)}"
        system_error = error.errno
    except OSError as error:
        code = "not_found" if isinstance(error, PermissionError) else "storage_failed"
        message = f"{os.fsdecode(path)}: {error.strerror}"
        system_error = error.errno
    raise _errors.make_error(code, message, system_error or 0)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    # Not the ctime, which the engine compares too: it changes when another file takes the name, as
    # save_file() does it, and what is open stays what it was.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Content:
    """The content of a file as bytes in memory."""

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data).cast("B")
        descriptor = os.memfd_create("safetensors")
        try:
            # The header only, and a hole for the tensors: validating needs no second copy of them.
            header = int.from_bytes(self._data[:_LENGTH_BYTES], "little")
            with open(descriptor, "wb", closefd=False) as file:
                file.write(self._data[: _LENGTH_BYTES + header])
                file.truncate(len(self._data))
            path = f"/proc/self/fd/{descriptor}"
            with _errors.adapted(_HEADER, (path, "<bytes>")):
                self.checkpoint = _loads.open_checkpoint(path)
        finally:
            os.close(descriptor)

    def read(self, info: TensorInfo, offset: int, nbytes: int) -> bytearray:
        """Bytes [offset, offset + nbytes) of a tensor."""
        start = info.offset + offset
        return bytearray(self._data[start : start + nbytes])
