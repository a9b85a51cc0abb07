"""Tests; `cdna3` is the executor of gfx942 machine code."""
