"""Timers call what they are given as often and in the order they say; no test looks at a clock."""

from __future__ import annotations

import math
import types

import pytest
import torch

from benchmarks import timing
from benchmarks.timing import DryRun, Sample, WallClock, interleave

CPU = torch.device("cpu")


class Scripted:
    """A candidate whose measurements are given."""

    def __init__(self, name: str, times: list[float], log: list[str]) -> None:
        self.name, self.times, self.log = name, iter(times), log

    def run(self) -> float:
        self.log.append(self.name)
        return next(self.times)


def test_a_sample_is_the_median_and_the_quartiles():
    assert Sample.of([5.0, 1.0, 2.0, 3.0, 4.0]) == Sample(3.0, 2.0, 4.0)
    assert Sample.of([7.0]) == Sample(7.0, 7.0, 7.0)


def test_candidates_take_turns_and_the_first_round_does_not_count():
    log: list[str] = []
    timed = {
        "a": Scripted("a", [900.0, 1.0, 2.0, 3.0], log),
        "b": Scripted("b", [900.0, 10.0, 20.0, 30.0], log),
    }
    found = interleave(timed, rounds=3)
    assert log == ["a", "b"] * 4
    assert (found["a"].median, found["b"].median) == (2.0, 20.0)


def test_the_wall_clock_prepares_every_measurement_and_goes_through_the_buffers():
    seen: list[object] = []
    clock = WallClock(seen.append, CPU, count=2, prepare=lambda: seen.append("prepare"))
    assert clock.run() > 0 and clock.run() > 0
    assert seen == ["prepare", 0, 1, "prepare", 2, 3]


def test_short_calls_are_repeated_until_they_can_be_measured(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: 2.0**-16 * next(ticks))
    clock = WallClock(lambda _: None, CPU)
    tick = 1e6 / 2**16
    assert clock.count == int(timing.SHORTEST_US / tick) > 1
    assert clock.run() == pytest.approx(tick / clock.count)


def test_a_dry_run_calls_every_set_of_buffers_and_has_no_time():
    seen: list[int] = []
    assert math.isnan(timing.ready(seen.append, 3, CPU, is_dry=True).run())
    assert seen == [0, 1, 2]
    assert math.isnan(interleave({"a": DryRun(seen.append, 1)}, 3)["a"].median)


def test_enough_sets_of_buffers_exceed_the_caches():
    for size in (1, 10**6, 10**9):
        count = timing.set_count(size, CPU, at_most=10**9)
        assert count >= 2 and count * size >= timing.cache_bytes(CPU)
    assert timing.set_count(1, CPU) == timing.MOST_SETS


def test_buffers_take_twice_the_cache_that_the_card_says_it_has(monkeypatch):
    card = types.SimpleNamespace(L2_cache_size=60 * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    gpu = torch.device("cuda")
    assert timing.cache_bytes(gpu) == 120 * 2**20
    assert timing.set_count(36864, gpu) == 3414  # one row of 4096 and its weight
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert timing.cache_bytes(gpu) == 2 * 256 * 2**20  # the Infinity Cache of an MI300X


def test_long_rounds_are_fewer_unless_their_number_is_given(monkeypatch):
    for rounds, tick, count in ((None, 0.001, 9), (None, 1.5, 3), (5, 1.5, 5), (2, 0.001, 2)):
        clock = iter(range(10**6))
        monkeypatch.setattr(timing.time, "perf_counter", lambda c=clock, t=tick: t * next(c))
        log: list[str] = []
        interleave({"a": Scripted("a", [1.0] * 20, log)}, rounds)
        assert len(log) == 1 + count


def test_twice_the_last_cache_of_a_cpu_or_of_a_large_one_where_it_is_unknown(monkeypatch):
    monkeypatch.setattr(timing, "last_cache_bytes", lambda: 3 * 2**20)
    assert timing.cache_bytes(CPU) == 6 * 2**20
    monkeypatch.setattr(timing, "last_cache_bytes", lambda: 0)
    assert timing.cache_bytes(CPU) == 2 * timing.UNKNOWN_CACHE == 2**29


def test_no_two_candidates_start_at_the_same_set_and_each_takes_them_in_turn():
    seen: dict[str, list[int]] = {"a": [], "b": []}
    turns = timing.take_turns({name: log.append for name, log in seen.items()}, range(5))
    for at in range(6):
        for call in turns.values():
            call(at)
    assert seen == {"a": [0, 1, 2, 3, 4, 0], "b": [2, 3, 4, 0, 1, 2]}


def test_ceilings_are_the_fastest_rates(monkeypatch):
    monkeypatch.setattr(timing, "last_cache_bytes", lambda: 2**27)  # 2**26 numbers are twice it
    us = {"read": 2.0**26, "stream": 2.0**26, "bf16": 2.0**30, "fp32": 2.0**29}
    names = iter(us)

    def ready(call, count, device):
        call(0)
        best = us[next(names)]
        return Scripted("", [3 * best, best, *[2 * best] * 5], [])

    monkeypatch.setattr(timing, "ready", ready)
    found = timing.measure_ceilings(CPU)
    assert found.read == pytest.approx(4e-3)
    assert found.stream == pytest.approx(12e-3)
    assert found.matmul == pytest.approx(4e-6)
