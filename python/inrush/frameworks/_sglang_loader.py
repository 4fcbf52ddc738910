"""SGLang's own loader, with the bytes of safetensors files brought by Inrush."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from inrush import _errors
from inrush.frameworks import _weights
from inrush.frameworks._sglang_options import KEY, WHERE, options_in
from sglang.srt.configs.load_config import LoadFormat
from sglang.srt.model_loader import weight_utils
from sglang.srt.model_loader.loader import DefaultModelLoader
from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]

_log = logging.getLogger("inrush")

# Formats of the default loader that mean safetensors files.
_FORMATS = (LoadFormat.AUTO, LoadFormat.SAFETENSORS, LoadFormat.MISTRAL)


def misfit() -> str | None:
    """What of this SGLang differs from what the loader builds on; None where nothing does."""
    wanted = {
        "_prepare_weights": ["self", "model_name_or_path", "revision", "fall_back_to_pt"],
        "_get_weights_iterator": ["self", "source"],
    }
    for method, parameters in wanted.items():
        function = getattr(DefaultModelLoader, method, None)
        if not callable(function):
            return f"DefaultModelLoader has no {method}()"
        found = list(inspect.signature(function).parameters)
        if found[: len(parameters)] != parameters:
            return f"DefaultModelLoader.{method} takes {found}, not {parameters} first"
    return None


class Loader(DefaultModelLoader):  # type: ignore[misc]
    """Which files is SGLang's decision, and so is what becomes of each tensor."""

    counter_before_loading_weights: float

    def __init__(self, load_config: Any) -> None:
        if problem := misfit():
            raise _errors.make_error(
                "environment_unfit",
                f"Inrush does not know this SGLang: {problem}. It was tried with 0.5.23; install that or a "
                "newer inrush, or leave Inrush out",
            )
        given = load_config.model_loader_extra_config or {}
        self._options = _weights.read_options(options_in(given), WHERE)
        # SGLang's loader knows neither the class as a format nor our key.
        own = copy.copy(load_config)
        own.model_loader_extra_config = {key: value for key, value in given.items() if key != KEY}
        if own.model_loader_extra_config:
            raise _errors.make_error(
                "invalid_request",
                f"--model-loader-extra-config: {', '.join(own.model_loader_extra_config)} is for SGLang's "
                f'own reader; options of Inrush go into {{"{KEY}": {{...}}}}',
            )
        if isinstance(own.load_format, type):
            own.load_format = LoadFormat.AUTO
        self._model_device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(own)

    def load_model(self, *, model_config: Any, device_config: Any) -> torch.nn.Module:
        self._model_device = torch.device(device_config.device)
        model: torch.nn.Module = super().load_model(model_config=model_config, device_config=device_config)
        return model

    def _get_weights_iterator(
        self, source: Any, *, resolved_source: Any = None, **startup: Any
    ) -> Iterator[tuple[str, torch.Tensor]]:
        folder, files, is_safetensors = self._files_of(source, resolved_source)
        if not is_safetensors or self.load_config.load_format not in _FORMATS:
            _log.warning("%s: SGLang's own reader loads it, since it is not in safetensors files", folder)
            if resolved_source is not None:
                startup["resolved_source"] = resolved_source
            return super()._get_weights_iterator(source, **startup)  # type: ignore[no-any-return]
        stem = "consolidated" if self.load_config.load_format == LoadFormat.MISTRAL else "model"
        parts = _weights.parts_of(files, os.path.join(folder, f"{stem}.safetensors.index.json"))
        device = self._options.device
        if device == "auto":
            device = _weights.engine_device(self._model_device)
        weights = self._with_bar(parts, device)
        draft = getattr(self.load_config, "draft_model_idx", None)
        if draft is not None:
            return self._filter_mtp_weights(weights, source.prefix, draft)  # type: ignore[no-any-return]
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        return ((source.prefix + name, tensor) for name, tensor in weights)

    def _files_of(self, source: Any, resolved_source: Any) -> tuple[str, list[str], bool]:
        if resolved_source is not None:
            return (
                resolved_source.hf_folder,
                list(resolved_source.weight_files),
                resolved_source.use_safetensors,
            )
        folder, files, is_safetensors = self._prepare_weights(
            source.model_or_path,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        if is_safetensors and source.model_config is not None:
            # A file that some checkpoints of GLM lack in their index.
            files = weight_utils.maybe_add_mtp_safetensors(
                files, folder, "model.safetensors.index.json", source.model_config.hf_config
            )
        return folder, files, is_safetensors

    def _with_bar(self, parts: list[_weights.Part], device: str) -> Iterator[tuple[str, torch.Tensor]]:
        is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        bar = tqdm(
            total=sum(part.nbytes for part in parts),
            desc="Loading safetensors by Inrush",
            disable=not is_first,
            bar_format=getattr(weight_utils, "BAR_FORMAT", None),
            unit="B",
            unit_scale=True,
            mininterval=1.0,
        )
        with bar:
            for name, tensor in _weights.stream(parts, device, self._options):
                bar.update(tensor.nbytes)
                yield name, tensor
                del tensor
