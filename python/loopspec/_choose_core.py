"""Which module of C++ the package runs on: its own, with the CPU, or that of loopspec-cuda, with GPUs, where it is installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import warnings


def choose_core() -> None:
    """Before anything imports `_core`. A loopspec-cuda that does not fit or cannot be loaded is said and left alone."""
    if importlib.util.find_spec("loopspec_cuda") is None:
        return
    # By what is installed, not by what the module says: of two modules with the same classes only one can be loaded.
    own, other = _version("loopspec"), _version("loopspec-cuda")
    if own is not None and other is not None and own != other:
        warnings.warn(f"loopspec-cuda is {other}, expected {own} as loopspec, so there is only the CPU", RuntimeWarning, stacklevel=3)
        return
    try:
        core = importlib.import_module("loopspec_cuda._core")
    except ImportError as error:
        warnings.warn(f"loopspec-cuda cannot be loaded, so there is only the CPU: {error}", RuntimeWarning, stacklevel=3)
        return
    sys.modules["loopspec._core"] = core
    sys.modules["loopspec"]._core = core  # type: ignore[attr-defined]


def _version(package: str) -> str | None:
    """None: it is not installed, as in a build tree."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
