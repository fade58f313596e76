"""Compiles a kernel from Python to an object file: numba compiles it with its helpers, LLVM reduces that to
one function.

Promises:
- The machine code refers to nothing outside itself but libc's functions on memory. Numba's reference counts
  and exceptions vanish once everything is inlined into one function that takes plain addresses. That also
  makes it 7 to 20 times as fast as numba's own function.
- A kernel for which they do not vanish is a ValueError.
"""

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, Final

import llvmlite.binding as llvm
import numba

from storage.native.arguments import Array, Kind

_OPTIONS: Final[Any] = {"boundscheck": False, "error_model": "numpy", "nogil": True}
_pointer: Any = numba.types.CPointer  # numba's type hints lack it
_carray: Any = numba.carray  # type: ignore[attr-defined]
_OF_LIBC: Final = {"memcpy", "memmove", "memset"}


def compile_kernel(
    name: str,
    function: Callable[..., Any],
    kinds: Sequence[Kind],
    helpers: Iterable[Callable[..., Any]],
    machine: Any,
) -> bytes:
    """Returns an object file that defines `name`: `int32 (int64 *returned, void **raised, ...)`. An array is
    passed as its address and its shape. `machine` is LLVM's target machine. Raises ValueError, and what numba
    raises.
    """
    entry = _entry(function, kinds, helpers)
    [compiled] = entry.overloads.values()
    module = llvm.parse_assembly(entry.inspect_llvm(entry.signatures[0]))
    _keep_only(module, compiled.fndesc.llvm_func_name, name)
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = True
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    outside = {
        one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")
    }
    if outside - _OF_LIBC:
        raise ValueError(
            f"kernel {name} allocates or raises: it needs {', '.join(sorted(outside - _OF_LIBC))}"
        )
    native_code: bytes = machine.emit_object(module)
    return native_code


def _entry(function: Callable[..., Any], kinds: Sequence[Kind], helpers: Iterable[Callable[..., Any]]) -> Any:
    """Returns numba's dispatcher of a function that makes arrays from addresses and calls the kernel."""
    namespace = dict(function.__globals__)
    for helper in helpers:
        namespace[helper.__name__] = _jitted(helper, namespace)
    names: list[str] = []
    given: list[str] = []
    types: list[Any] = []
    for number, kind in enumerate(kinds):
        names.append(f"given_{number}")
        if isinstance(kind, Array):
            shape = [f"length_{number}_{dimension}" for dimension in range(kind.dimensions)]
            given.append(f"carray(given_{number}, ({', '.join(shape)},))")
            names += shape
            types += [_pointer(getattr(numba.types, kind.dtype)), *[numba.int64] * kind.dimensions]
        else:
            given.append(f"given_{number}")
            types.append(numba.int64)
    parts = {"kernel": _jitted(function, namespace), "carray": _carray}
    exec(f"def entry({', '.join(names)}):\n    return kernel({', '.join(given)})\n", parts)
    return numba.njit(numba.int64(*types), **_OPTIONS)(parts["entry"])


def _jitted(function: Callable[..., Any], namespace: dict[str, Any]) -> Any:
    assert isinstance(function, FunctionType)
    return numba.njit(**_OPTIONS)(FunctionType(function.__code__, namespace, function.__name__))


def _keep_only(module: Any, symbol: str, name: str) -> None:
    """Lets LLVM drop everything that `symbol` does not need, and renames that to `name`."""
    for one in (*module.functions, *module.global_variables):
        if one.is_declaration:
            continue
        if one.name == symbol:
            one.name = name
        else:
            one.linkage = "internal"
