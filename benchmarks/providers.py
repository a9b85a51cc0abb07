"""Who computes: eager PyTorch, Inductor and mi300 in every mode of torch.compile."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import mi300_inductor  # noqa: F401  (registers the backend's operators)

MODES = ("default", "reduce-overhead", "max-autotune")


@dataclass(frozen=True)
class Provider:
    """A backend of torch.compile in one of its modes; `eager` has neither."""

    backend: str
    mode: str = "default"

    @property
    def name(self) -> str:
        """As it is written in tables and on the command line."""
        return self.backend if self.mode == "default" else f"{self.backend}:{self.mode}"

    @property
    def is_compiled(self) -> bool:
        return self.backend != "eager"

    def compile(self, function: Callable[..., object]) -> Callable[..., object]:
        """The function as this provider runs it, compiled at its first call for those sizes."""
        if not self.is_compiled:
            return function
        mode = None if self.mode == "default" else self.mode
        # A code object of its own: Dynamo keeps the compilations of one code object in one list,
        # which every call of any of them would go through.
        own = types.FunctionType(
            function.__code__.replace(co_name=self.name.replace(":", "_").replace("-", "_")),
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        return torch.compile(own, backend=self.backend, mode=mode, dynamic=False)


EAGER = Provider("eager")
ALL = (EAGER, *(Provider(b, mode) for mode in MODES for b in ("inductor", "mi300")))
NAMES = tuple(provider.name for provider in ALL)


def chosen(
    names: Sequence[str] | None, device: torch.device, note: Callable[[str], None]
) -> list[Provider]:
    """The providers of those names, by default all that mean something on the device.

    `note` is told of each that was named and means nothing there.
    """
    found = []
    for provider in ALL if names is None else (p for p in ALL if p.name in names):
        if device.type == "cuda" or provider.mode != "reduce-overhead":
            found.append(provider)
        elif names is not None:
            note(
                f"provider {provider.name}: it replays graphs of a GPU; got device {device.type}, "
                "expected cuda. Name it without a mode."
            )
    return found


def counterpart(name: str) -> str | None:
    """The mi300 provider with which another one is compared; None for mi300's own."""
    backend, _, mode = name.partition(":")
    if backend == "mi300":
        return None
    return f"mi300:{mode}" if mode else "mi300"
