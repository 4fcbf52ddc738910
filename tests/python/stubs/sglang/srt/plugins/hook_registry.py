import enum
import functools
import importlib
import typing


class HookType(enum.Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    hooks: typing.ClassVar[list] = []  # the stub's own, for tests to look at

    @classmethod
    def register(cls, target: str, hook, hook_type: HookType = HookType.AFTER, *, source=None):
        cls.hooks.append((target, hook, hook_type))

    @classmethod
    def apply_hooks(cls):
        for target, hook, hook_type in cls.hooks:
            assert hook_type is HookType.AROUND
            module_name, name = target.rsplit(".", 1)
            module = importlib.import_module(module_name)
            setattr(module, name, functools.partial(hook, getattr(module, name)))
