import dataclasses
import glob
import json
import os

from vllm.model_executor.model_loader.base_loader import BaseModelLoader


class DefaultModelLoader(BaseModelLoader):
    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        subfolder: str | None = None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None
        is_unused_weight: object = None

    counter_before_loading_weights: float = 0.0

    def __init__(self, load_config):
        super().__init__(load_config)
        self.local_expert_ids = None
        self._encoder_only_lm_prefixes = None
        self._encoder_only_weights_mapper = None
        unknown = set(load_config.model_loader_extra_config) - {
            "enable_multithread_load", "num_threads", "enable_weights_track",
        }
        if unknown:
            raise ValueError(f"the stub's default loader does not know {unknown}")

    def _prepare_weights(
        self,
        model_name_or_path: str,
        subfolder: str | None,
        revision: str | None,
        fall_back_to_pt: bool,
        allow_patterns_overrides: list[str] | None,
    ):
        if self.load_config.load_format != "auto":
            raise ValueError(f"the stub does not know the load format {self.load_config.load_format}")
        folder = os.path.join(model_name_or_path, subfolder or "")
        for pattern in allow_patterns_overrides or ["*.safetensors", "*.bin", "*.pt"]:
            files = glob.glob(os.path.join(folder, pattern))
            if files:
                break
        index = "model.safetensors.index.json"
        is_safetensors = files[0].endswith(".safetensors")
        if is_safetensors and os.path.isfile(os.path.join(folder, index)) and not allow_patterns_overrides:
            with open(os.path.join(folder, index), encoding="utf-8") as text:
                named = set(json.load(text)["weight_map"].values())
            files = [path for path in files if os.path.basename(path) in named]
        return folder, files, is_safetensors, index

    def _get_weights_iterator(self, source):
        return iter([("read by the stub", None)])

    def download_model(self, model_config):
        self._prepare_weights(model_config.model, None, model_config.revision, True, None)

    def load_weights(self, model, model_config):
        model.load_weights(self.get_all_weights(model_config, model))

    def get_all_weights(self, model_config, model):
        primary = self.Source(
            model_config.model,
            model_config.revision,
            allow_patterns_overrides=getattr(model, "allow_patterns_overrides", None),
            is_unused_weight=getattr(model, "is_unused_checkpoint_weight", None),
        )
        yield from self._get_weights_iterator(primary)
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)
