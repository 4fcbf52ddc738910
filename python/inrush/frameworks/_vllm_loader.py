"""vLLM's own loader, with the bytes of safetensors files brought by Inrush. Imported by register() only."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from inrush import _errors
from inrush.frameworks import _weights
from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
from vllm.model_executor.model_loader import weight_utils
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight
from vllm.platforms import current_platform

_log = logging.getLogger("inrush")

_WHERE = "--model-loader-extra-config"
# Keys of vLLM's own loader that mean something here too.
_VLLM_KEYS = ("enable_weights_track",)
_INDEX = "model.safetensors.index.json"


def misfit() -> str | None:
    """What of this vLLM differs from what the loader builds on; None where nothing does."""
    wanted = {
        "_prepare_weights": [
            "self", "model_name_or_path", "subfolder", "revision", "fall_back_to_pt",
            "allow_patterns_overrides",
        ],
        "_get_weights_iterator": ["self", "source"],
    }  # fmt: skip
    for method, parameters in wanted.items():
        function = getattr(DefaultModelLoader, method, None)
        if not callable(function):
            return f"DefaultModelLoader has no {method}()"
        found = list(inspect.signature(function).parameters)
        if found != parameters:
            return f"DefaultModelLoader.{method} takes {found}, not {parameters}"
    return None


class Loader(DefaultModelLoader):  # type: ignore[misc]
    """Which files and which tensors is vLLM's decision, and so is what becomes of each tensor."""

    counter_before_loading_weights: float

    def __init__(self, load_config: Any) -> None:
        given = load_config.model_loader_extra_config
        if not isinstance(given, dict):
            raise _errors.make_error("invalid_request", f"{_WHERE} is {given!r}; say a JSON object")
        self._options = _weights.read_options(given, _WHERE, also=_VLLM_KEYS)
        strategy = getattr(load_config, "safetensors_load_strategy", None)
        if strategy not in (None, "lazy"):
            raise _errors.make_error(
                "invalid_request",
                f"--safetensors-load-strategy={strategy} is for vLLM's reader: drop it or the load format",
            )
        # vLLM's loader knows neither our name nor our keys. "auto" picks the files that a user had before.
        own = copy.copy(load_config)
        own.load_format = "auto"
        own.model_loader_extra_config = {key: given[key] for key in _VLLM_KEYS if key in given}
        super().__init__(own)

    def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, torch.Tensor]]:
        folder, files, is_safetensors, *index = self._prepare_weights(
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        if reason := self._reason_to_step_back(is_safetensors):
            _log.warning("%s: vLLM's own reader loads it, since %s", folder, reason)
            return super()._get_weights_iterator(source)  # type: ignore[no-any-return]
        index_name = index[0] if index else _INDEX
        files = self._without_language_model(files, folder, index_name)
        parts = _weights.parts_of(files, os.path.join(folder, index_name))
        parts = [part for part in self._wanted(parts, source) if part.names]
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        return ((source.prefix + name, tensor) for name, tensor in self._stream(parts))

    def _reason_to_step_back(self, is_safetensors: bool) -> str | None:
        if not is_safetensors:
            return "it is not in safetensors files"
        # vLLM sets it on this loader's configuration when a model needs it.
        if getattr(self.load_config, "safetensors_load_strategy", None) == "torchao":
            return "tensors of torchao are put together from several"
        return None

    def _without_language_model(self, files: list[str], folder: str, index_name: str) -> list[str]:
        """The files that --mm-encoder-only leaves."""
        prefixes = getattr(self, "_encoder_only_lm_prefixes", None)
        if prefixes is None:
            return files
        kept = weight_utils.filter_mm_encoder_only_safetensors_files(
            files, folder, index_name, prefixes, weights_mapper=self._encoder_only_weights_mapper
        )
        if not kept:
            raise _errors.make_error(
                "invalid_request", f"{folder}: --mm-encoder-only leaves none of its {len(files)} files"
            )
        return list(kept)

    def _wanted(self, parts: list[_weights.Part], source: Any) -> list[_weights.Part]:
        """Without what this rank has no use for: experts of others, tensors that the model says it skips."""
        experts = self.local_expert_ids
        parts = [part.among(lambda name: not should_skip_weight(name, experts)) for part in parts]
        is_unused: Callable[[str], bool] | None = getattr(source, "is_unused_weight", None)
        if is_unused is None:
            return parts
        used = [part.among(lambda name: not is_unused(name)) for part in parts]
        # As vLLM has it: a model that would skip everything is left to skip by itself.
        return used if any(part.names for part in used) else parts

    def _stream(self, parts: list[_weights.Part]) -> Iterator[tuple[str, torch.Tensor]]:
        bar = tqdm(
            total=sum(part.nbytes for part in parts),
            desc="Loading safetensors by Inrush",
            disable=not weight_utils.enable_tqdm(self.load_config.use_tqdm_on_load),
            bar_format=getattr(weight_utils, "_BAR_FORMAT", None),
            unit="B",
            unit_scale=True,
            mininterval=1.0,
        )
        with bar:
            for name, tensor in _weights.stream(parts, self._device(), self._options):
                bar.update(tensor.nbytes)
                yield name, tensor
                del tensor

    def _device(self) -> str:
        if self._options.device != "auto":
            return self._options.device
        return _weights.engine_device(torch.device(self.load_config.device or current_platform.device_type))
