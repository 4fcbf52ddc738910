"""mypy's stubtest, taught to read the signatures of nanobind.

usage: stubtest_nanobind.py [stubtest's arguments]

stubtest asks inspect, which knows nothing of nanobind's function objects; so it would call each function of a
module "not a function" and compare no argument of any. What they carry in `__nb_signature__` says all of it.
"""
import ast
import inspect
import re
import sys
import types

from mypy import stubtest

Parameter = inspect.Parameter


def parse(text, defaults):
    """The Signature of 'def f(self, a: int = DEFAULT) -> None', where DEFAULT stands for the first default: a
    backslash and its number, or a backslash, an equals sign and its number where the binding words it."""
    arguments = ast.parse(re.sub(r"\\=?(\d+)", r"\1", text) + ": ...").body[0].args

    def parameter(argument, kind, default=None):
        value = Parameter.empty if default is None else defaults[ast.literal_eval(default)]
        return Parameter(argument.arg, kind, default=value)

    positional = [(argument, Parameter.POSITIONAL_ONLY) for argument in arguments.posonlyargs]
    positional += [(argument, Parameter.POSITIONAL_OR_KEYWORD) for argument in arguments.args]
    required = [None] * (len(positional) - len(arguments.defaults))
    parameters = [parameter(argument, kind, default)
                  for (argument, kind), default in zip(positional, required + arguments.defaults)]
    if arguments.vararg:
        parameters.append(parameter(arguments.vararg, Parameter.VAR_POSITIONAL))
    parameters += [parameter(argument, Parameter.KEYWORD_ONLY, default)
                   for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    if arguments.kwarg:
        parameters.append(parameter(arguments.kwarg, Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


def is_nanobind(runtime):
    return type(runtime).__name__ in ("nb_func", "nb_method", "nb_bound_method")


def is_class_of_nanobind(runtime):
    return type(runtime).__name__ == "nb_type"


def is_refused_init(runtime):
    """The `__init__` of a class without one: it raises, whatever its arguments."""
    return isinstance(runtime, types.WrapperDescriptorType) and is_class_of_nanobind(runtime.__objclass__)


def teach():
    inspect_signature, is_function = stubtest.safe_inspect_signature, stubtest.is_probably_a_function
    verify_metaclass = stubtest._verify_metaclass

    def signature(runtime):
        if is_refused_init(runtime):
            return None  # nothing to compare
        if not is_nanobind(runtime):
            return inspect_signature(runtime)
        if len(runtime.__nb_signature__) > 1:
            return None  # overloads
        text, _, defaults = runtime.__nb_signature__[0]
        return parse(text, defaults)

    def metaclass_errors(stub, runtime, *rest, **named):
        if not is_class_of_nanobind(runtime):  # that of all of nanobind's classes is of no use to a checker
            yield from verify_metaclass(stub, runtime, *rest, **named)

    stubtest.safe_inspect_signature = signature
    stubtest.is_probably_a_function = lambda runtime: is_nanobind(runtime) or is_function(runtime)
    stubtest._verify_metaclass = metaclass_errors


if __name__ == "__main__":
    teach()
    sys.exit(stubtest.main())
