"""`inrush.dcp.Reader`: torch.distributed.checkpoint reads its items by the engine."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any, Union

import torch
from inrush import _errors
from inrush._inrush import Loader
from inrush._loads import Options
from inrush._progress import Progress
from inrush.torch import _dcp_folder
from inrush.torch._dcp_folder import StoredTensor
from inrush.torch._dcp_metadata import StoredItem
from inrush.torch._dcp_reads import Reading
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

FolderPath = Union[str, "os.PathLike[str]"]


class _Unreadable(Metadata):  # type: ignore[misc,unused-ignore]  # as below
    """Brings an error past torch, to whoever uses it."""

    def __init__(self, error: _errors.Error) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error if name == "state_dict_metadata" else AttributeError(name)


class Reader(StorageReader):  # type: ignore[misc,unused-ignore]  # Any without torch
    """For torch.distributed.checkpoint.load(state_dict, storage_reader=inrush.dcp.Reader(path)).

    path: a folder that torch.distributed.checkpoint.save() wrote, or one of safetensors (whole tensors or the
        shards of HuggingFaceStorageWriter), a .safetensors file or an index.
    weights_only: whether objects that are no tensors are refused unless torch's weights-only unpickler allows
        them. torch's planner itself would run whatever their pickle says.
    timeout: seconds for the reads of one rank.
    loader, progress, transfer, page_cache: those of inrush.torch.load().
    Its methods raise Error; torch wraps it in a CheckpointException, which names rank and cause.
    """

    def __init__(
        self,
        path: FolderPath,
        *,
        weights_only: bool = True,
        progress: Progress = None,
        timeout: float | None = None,
        loader: Loader | None = None,
        transfer: str = "auto",
        page_cache: str = "auto",
    ) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._weights_only = weights_only
        self._options = Options(None, None, progress, timeout, transfer, page_cache)
        self._loader = loader
        self._stored: dict[Any, StoredItem | StoredTensor] = {}
        self._failure: _errors.Error | None = None

    @property
    def checkpoint_id(self) -> FolderPath:
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: FolderPath) -> bool:
        return "://" not in str(checkpoint_id) and os.path.exists(checkpoint_id)

    def reset(self, checkpoint_id: FolderPath | None = None) -> None:
        self._stored = {}
        self._failure = None
        if checkpoint_id:
            self._path = os.fspath(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        rank = kwargs.get("rank")
        try:
            return _dcp_folder.read_metadata(self._path, rank)
        except _errors.Error as error:
            # torch asks for the metadata of the rank next, and forgets both errors, or their classes.
            if rank is None or self._failure is None:
                self._failure = error
                raise
            return _Unreadable(self._failure if error.code == "not_found" else error)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        if isinstance(metadata, _Unreadable):
            raise metadata.error
        self._stored = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Reads all items; when it returns they are in place."""
        pairs = [(item, self._find(item)) for item in plan.items]
        for item, stored in pairs:
            if isinstance(stored, StoredItem) and stored.transforms:
                raise _errors.make_error(
                    "invalid_request",
                    f"{self._path}: item {item.storage_index.fqn!r} was written through {stored.transforms}, "
                    "which Inrush does not undo: read it by torch's FileSystemReader",
                )
        objects = [pair for pair in pairs if pair[0].type == LoadItemType.BYTE_IO]
        with Reading(self._path, self._options, self._loader) as reading:
            for item, stored in objects:  # first, since they are small and may be refused
                planner.load_bytes(item, self._object_bytes(reading, item, stored))
            reading.load([pair for pair in pairs if pair[0].type != LoadItemType.BYTE_IO], planner)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _find(self, item: ReadItem) -> StoredItem | StoredTensor:
        stored = self._stored.get(item.storage_index)
        if stored is None:
            raise _errors.make_error(
                "corrupt_checkpoint", f"{self._path}: nothing says where {item.storage_index} is"
            )
        return stored

    def _object_bytes(
        self, reading: Reading, item: ReadItem, stored: StoredItem | StoredTensor
    ) -> io.BytesIO:
        name = item.storage_index.fqn
        if isinstance(stored, StoredTensor):
            raise _errors.make_error("invalid_request", f"{stored.file}: {name!r} is a tensor, not an object")
        source, place = reading.open(name, stored)
        data = io.BytesIO(source.read(place.start, place.nbytes))
        if self._weights_only:
            try:
                torch.load(data, map_location="cpu", weights_only=True)
            except pickle.UnpicklingError as error:
                cause = " ".join(str(error).partition("WeightsUnpickler error: ")[2].split("\n")[0].split())
                raise _errors.make_error(
                    "invalid_request",
                    f"{place}: object {name!r}: {cause or error} If you trust the "
                    "checkpoint, say Reader(path, weights_only=False), or allow what it names by "
                    "torch.serialization.add_safe_globals()",
                ) from error
            except Exception as error:
                raise _errors.make_error(
                    "corrupt_checkpoint", f"{place}: object {name!r} is not readable: {error}"
                ) from error
            data.seek(0)
        return data
