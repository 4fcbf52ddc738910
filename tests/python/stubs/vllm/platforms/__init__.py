import types

current_platform = types.SimpleNamespace(device_type="cpu")
