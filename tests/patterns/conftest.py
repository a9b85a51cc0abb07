"""What tests of spellings leave behind is taken away."""

import pytest

from mi300_inductor.graph import registry
from mi300_inductor.graph.recognise import compiled


@pytest.fixture
def no_spellings_stay(monkeypatch):
    """The test begins without spellings of users, and its own are forgotten."""
    monkeypatch.setattr(registry, "_user_spellings", {})
    compiled.cache_clear()
    yield
    monkeypatch.undo()
    compiled.cache_clear()
