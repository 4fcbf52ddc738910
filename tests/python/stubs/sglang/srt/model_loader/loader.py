import dataclasses
import glob
import os
import re
from abc import ABC, abstractmethod

from sglang.srt.configs.load_config import LoadFormat


class BaseModelLoader(ABC):
    def __init__(self, load_config):
        self.load_config = load_config

    @abstractmethod
    def download_model(self, model_config): ...

    @abstractmethod
    def load_model(self, *, model_config, device_config): ...


class DefaultModelLoader(BaseModelLoader):
    _MTP_PATTERN = re.compile(r"model\.mtp\.layers\.(\d+)\.")

    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None
        model_config: object = None

    @dataclasses.dataclass(frozen=True)
    class ResolvedSource:
        source: object
        hf_folder: str
        weight_files: tuple
        use_safetensors: bool

    counter_before_loading_weights: float = 0.0

    def __init__(self, load_config):
        super().__init__(load_config)
        unknown = set(load_config.model_loader_extra_config) - {"enable_multithread_load", "num_threads"}
        if unknown:
            raise ValueError(f"the stub's default loader does not know {unknown}")

    def _prepare_weights(
        self,
        model_name_or_path: str,
        revision: str | None,
        fall_back_to_pt: bool,
        allow_patterns_overrides: list[str] | None = None,
    ):
        if self.load_config.load_format not in list(LoadFormat):
            raise ValueError(f"the stub does not know the load format {self.load_config.load_format}")
        for pattern in allow_patterns_overrides or ["model*.safetensors", "*.bin"]:
            files = glob.glob(os.path.join(model_name_or_path, pattern))
            if files:
                break
        return model_name_or_path, files, files[0].endswith(".safetensors")

    def _get_weights_iterator(
        self,
        source,
        *,
        resolved_source=None,
        startup_prefetch_started: bool = False,
        startup_prefetch_active: bool = False,
    ):
        return iter([("read by the stub", None)])

    @classmethod
    def _filter_mtp_weights(cls, weights_iterator, prefix: str, draft_model_idx: int):
        for name, tensor in weights_iterator:
            found = cls._MTP_PATTERN.match(name)
            if found is None or int(found[1]) == draft_model_idx:
                yield prefix + cls._MTP_PATTERN.sub("model.mtp.layers.0.", name), tensor

    def download_model(self, model_config):
        self._prepare_weights(model_config.model_path, None, True)

    def load_model(self, *, model_config, device_config):
        source = self.Source(model_config.model_path, None, model_config=model_config)
        return dict(self._get_weights_iterator(source))


class DummyModelLoader(BaseModelLoader):
    def download_model(self, model_config): ...

    def load_model(self, *, model_config, device_config): ...


def get_model_loader(load_config, model_config=None):
    if load_config.load_format == LoadFormat.DUMMY:
        return DummyModelLoader(load_config)
    if isinstance(load_config.load_format, type):
        return load_config.load_format(load_config)
    return DefaultModelLoader(load_config)
