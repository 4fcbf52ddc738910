from vllm.model_executor.model_loader.base_loader import BaseModelLoader

registered = {}  # the stub's own, for tests to look at


def register_model_loader(load_format: str):
    def wrap(model_loader_cls):
        assert issubclass(model_loader_cls, BaseModelLoader)
        assert load_format not in registered, "registered twice"
        registered[load_format] = model_loader_cls
        return model_loader_cls

    return wrap
