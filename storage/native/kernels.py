"""Native kernels: Python functions that numba compiles once. Every later process loads their machine code
without numba, whose import alone would cost an agent 0.7 s of CPU and 65 MiB.

Promises:
- Once its object file exists, importing a kernel compiles nothing. Of several processes at once one compiles.
- A file made from other source, by another LLVM or for another architecture is never loaded.
- Arguments of another type, shape or layout than the kernel was compiled for are a TypeError.

The files are in the source's `__pycache__`; if that is read-only, in the user's cache directory. If neither
can be written, each process compiles for itself (a few seconds).

A kernel returns one integer and writes all other results into arrays that its caller made. It allocates
nothing and raises nothing, so its machine code needs no runtime of numba (`build` checks it). It runs without
the GIL. `Kernel.interpreted` is the same function in plain Python.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm

from storage.native.arguments import Array, Kind

_helpers: Final[dict[str, dict[str, Callable[..., Any]]]] = defaultdict(dict)
"""Functions that kernels call, by module."""


class Kernel:
    """A native function."""

    def __init__(self, interpreted: Callable[..., Any], kinds: tuple[Kind, ...], address: int) -> None:
        self.interpreted = interpreted
        """The same function in Python; slow."""
        self._kinds = kinds
        words = sum(kind.dimensions + 1 if isinstance(kind, Array) else 1 for kind in kinds)
        returned, raised = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_void_p)
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, returned, raised, *[ctypes.c_int64] * words)
        self._native = prototype(address)

    def __call__(self, *arguments: Any) -> int:
        """Raises TypeError for arguments of other kinds than the kernel was compiled for."""
        return self.on(*arguments)()

    def on(self, *arguments: Any) -> Callable[[], int]:
        """Binds the kernel to these arrays, for repeated calls: finding their addresses takes four times as
        long as the call. For one thread at a time. Raises TypeError."""
        words: list[int] = []
        for argument, kind in zip(arguments, self._kinds, strict=True):
            if isinstance(kind, Array):
                words += kind.parts(argument)
            else:
                words.append(argument)
        native, returned, raised = self._native, ctypes.c_int64(), ctypes.c_void_p()
        by_reference = ctypes.byref(returned), ctypes.byref(raised)

        def call(_arrays_that_must_live: tuple[Any, ...] = arguments) -> int:
            status = native(*by_reference, *words)
            assert status == 0, "a kernel raises nothing"
            return returned.value

        return call


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function that kernels further down in the same module may call."""
    _helpers[function.__module__][function.__name__] = function
    return function


def kernel(*kinds: Kind) -> Callable[[Callable[..., Any]], Kernel]:
    """Makes a native function of a Python function that takes arguments of these kinds and returns one
    integer."""

    def made(function: Callable[..., Any]) -> Kernel:
        name = f"{function.__module__}.{function.__name__}"
        native_code = _native_code(name, function, kinds)
        loaded = llvm.ObjectFileRef.from_data(native_code)
        _loader().add_object_file(loaded)
        _loader().finalize_object()
        return Kernel(function, kinds, _loader().get_function_address(name))

    return made


@lru_cache(maxsize=1)
def _loader() -> Any:
    """LLVM's own loader of object files. It owns all loaded code until the process ends."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())


def _target_machine() -> Any:
    """Any processor of this architecture, so that an image runs on every machine. Kernels walk bytes one by
    one; code for the newest processors would be a tenth faster."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(opt=3, jit=True)


# --- object files


def _native_code(name: str, function: Callable[..., Any], kinds: tuple[Kind, ...]) -> bytes:
    source = Path(function.__code__.co_filename)
    origin = _origin(source, _constants(function))
    files = [directory / f"{name}.{sysconfig.get_platform()}.o" for directory in _directories(source)]
    if (found := _stored(files, origin)) is not None:
        return found
    with _alone(files):
        if (found := _stored(files, origin)) is not None:  # another process has compiled it meanwhile
            return found
        from storage.native.build import compile_kernel  # imports numba, which only compiling needs

        native_code = compile_kernel(
            name, function, kinds, _helpers[function.__module__].values(), _target_machine()
        )
        for file in files:
            with contextlib.suppress(OSError):
                _write(file, origin + native_code)
                break
    return native_code


def _stored(files: Sequence[Path], origin: bytes) -> bytes | None:
    for file in files:
        with contextlib.suppress(OSError):
            content = file.read_bytes()
            if content.startswith(origin):
                return content[len(origin) :]
    return None


@contextlib.contextmanager
def _alone(files: Sequence[Path]) -> Iterator[None]:
    """Keeps other processes from compiling the same kernel, where a lock file can be written. Agents that
    start together would otherwise each take half a minute of CPU."""
    with contextlib.ExitStack() as held:
        for file in files:
            with contextlib.suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                lock = held.enter_context(file.with_suffix(".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
                break
        yield


def _constants(function: Callable[..., Any]) -> str:
    """The numbers of the function's module when it was decorated, also imported ones: the machine code
    contains them."""
    return repr(
        sorted(
            (name, value) for name, value in function.__globals__.items() if isinstance(value, int | float)
        )
    )


@lru_cache
def _origin(source: Path, constants: str) -> bytes:
    """A digest of everything that the machine code depends on."""
    here = Path(__file__).parent
    parts = {source, *here.glob("*.py"), *source.parent.glob("*kernels.py")}
    content = b"\0".join(part.read_bytes() for part in sorted(parts))
    return hashlib.sha256(f"{llvmlite.__version__}\0{constants}\0".encode() + content).digest()


def _directories(source: Path) -> Iterator[Path]:
    yield source.parent / "__pycache__"
    with contextlib.suppress(RuntimeError):  # a user without a home
        # Not a setting of Tidelog's: where all programs of this user keep what they can make again.
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelog"


def _write(file: Path, content: bytes) -> None:
    """Writes the file whole or not at all, also when several processes write it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(file)
