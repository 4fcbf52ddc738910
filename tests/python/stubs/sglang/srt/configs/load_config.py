import dataclasses
import enum
import json


class LoadFormat(str, enum.Enum):
    AUTO = "auto"
    SAFETENSORS = "safetensors"
    DUMMY = "dummy"
    MISTRAL = "mistral"
    NPCACHE = "npcache"


@dataclasses.dataclass
class LoadConfig:
    load_format: object = LoadFormat.AUTO
    model_loader_extra_config: object = dataclasses.field(default_factory=dict)
    draft_model_idx: int | None = None

    def __post_init__(self):
        if isinstance(self.model_loader_extra_config, str):
            self.model_loader_extra_config = json.loads(self.model_loader_extra_config)
        if isinstance(self.load_format, str):
            self.load_format = LoadFormat(self.load_format.lower())
