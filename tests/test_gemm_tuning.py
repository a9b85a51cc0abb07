"""Measured plans of matmuls: what is measured, what wins, what is kept, and what the report says.

The GPU is a stand-in: a library that keeps what it is told to choose, and a clock with made-up
times. `tests/gpu/test_gemm_tuning.py` has the operator itself.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import mi300_inductor as mi
from mi300_inductor import gemm_plan, gemm_tuning, plan
from mi300_inductor.arch import GFX942
from mi300_inductor.fusion_pass import FusionPass
from mi300_inductor.gemm_classes import GemmClass
from mi300_inductor.gemm_plan import Form, GemmShape
from mi300_inductor.options import KINDS
from mi300_inductor.report import GraphReport, Report
from mi300_inductor.report_html import report_html

from .test_gemm_classes import MATMUL


class Library:
    """Keeps the shapes that are chosen, by device and rows; refuses those of a form."""

    def __init__(self, refused: Callable[[int, GemmShape], bool] = lambda rows, shape: False):
        self.refused = refused
        self.chosen: dict[tuple[int, int], tuple[int, ...]] = {}
        self.last: tuple[int, ...] = ()

    def mi300_choose_gemm(self, device: int, problem: Any, shape: Any) -> int:
        rows, self.last = problem._obj.args.m, shape._obj.numbers
        if self.refused(rows, shape._obj):
            return 1
        self.chosen[device, rows] = self.last
        return 0


class Clock:
    """Made-up seconds of whatever shape is in force while a call runs."""

    def __init__(self, library: Library, seconds: Callable[[GemmShape], float]) -> None:
        self.library, self.seconds, self.calls = library, seconds, 0

    def __call__(self, calls: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
        found = []
        for call in calls:
            self.calls += 1
            call()
            found.append(self.seconds(GemmShape(*self.library.last)))
        return found


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Clock]:
    """Makes every device a stand-in for an MI300X with a clock."""
    plan.core()  # before the cache is another one, where it would be built again
    monkeypatch.setattr(GemmClass, "calls", lambda *_: lambda: None)
    monkeypatch.setenv("MI300_INDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    def install(
        seconds: Callable[[GemmShape], float],
        versions: tuple[str, ...] = ("driver 1",),
        library: Library | None = None,
    ) -> Clock:
        clock = Clock(library or Library(), seconds)
        made = gemm_tuning.Card(
            clock.library,
            plan.device_info(GFX942),
            torch.device("cpu"),
            versions,
            clock,
        )
        monkeypatch.setattr(gemm_tuning, "open_card", lambda index: made)
        return clock

    return install


def prefer(form: Form) -> Callable[[GemmShape], float]:
    """A clock by which a form is fastest, and its shape with the most parts of k most of all."""
    return lambda shape: 5e-6 - 1e-7 * shape.splits if shape.form == form else 9e-6


def rule_of(matmul: GemmClass, rows: int) -> tuple[int, ...]:
    return gemm_plan.plan_gemm(matmul.problem(rows), plan.device_info(GFX942)).shape.numbers


def test_the_fastest_plan_is_chosen_for_all_rows_of_the_class(card: Any) -> None:
    clock = card(prefer(Form.RING))
    (tuned,) = gemm_tuning.tune([MATMUL])
    chosen = {clock.library.chosen[0, rows] for rows in range(2, 9)}
    assert len(chosen) == 1 and set(clock.library.chosen) == {(0, rows) for rows in range(2, 9)}
    shape = GemmShape(*chosen.pop())
    assert (shape.form, shape.splits) == (Form.RING, 16)
    assert tuned.plan == str(shape) and tuned.note == ""
    times = (tuned.time, tuned.rule_time, tuned.library_time)
    assert times == pytest.approx((3.4, 9.0, 9.0))
    count = len(gemm_plan.list_shapes(MATMUL.problem(8), plan.device_info(GFX942)))
    assert tuned.tried == count + 1 and clock.calls > tuned.tried


def test_the_library_is_a_candidate(card: Any) -> None:
    clock = card(prefer(Form.VENDOR))
    (tuned,) = gemm_tuning.tune([MATMUL])
    assert tuned.plan == "library" and tuned.time == tuned.library_time < tuned.rule_time
    assert set(clock.library.chosen.values()) == {gemm_tuning.LIBRARY.numbers}


def test_a_lucky_time_does_not_beat_the_library(card: Any) -> None:
    """All are timed once, then the fastest and the library once more, which decides."""
    seen: set[tuple[int, ...]] = set()

    def seconds(shape: GemmShape) -> float:
        is_first = shape.numbers not in seen
        seen.add(shape.numbers)
        if shape.form == Form.VENDOR:
            return 4e-6
        return 3e-6 if is_first and shape.form == Form.RING else 5e-6

    card(seconds)
    assert gemm_tuning.tune([MATMUL])[0].plan == "library"


def test_what_was_measured_is_not_measured_again(card: Any) -> None:
    card(prefer(Form.RING))
    first = gemm_tuning.tune([MATMUL])
    clock = card(prefer(Form.DENSE))
    fewer = replace(MATMUL, first_rows=8, device=3)
    second = gemm_tuning.tune([MATMUL, fewer])
    assert clock.calls == 0
    assert second[0] == first[0] and second[1] == replace(first[0], matmul=fewer)
    assert len(set(clock.library.chosen.values())) == 1
    assert set(clock.library.chosen) == {(0, rows) for rows in range(2, 9)} | {(3, 8)}


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 7},
        {"widths": (112,)},
        {"k": 1024},
        {"operand": "bfloat16"},
        {"out": "float32"},
        {"has_row_scales": True},
        {"has_column_scales": True},
        {"bias": "bfloat16"},
        {"addend": "bfloat16"},
        {"addend": "bfloat16", "is_addend_matrix": True},
        {"row_stride": 4096},
        {"weight_strides": (2064,)},
        "driver",
    ],
    ids=str,
)
def test_everything_that_a_time_depends_on_is_in_its_key(card: Any, change: Any) -> None:
    card(prefer(Form.DENSE))
    gemm_tuning.tune([MATMUL])
    is_driver = change == "driver"
    clock = card(prefer(Form.VENDOR), ("driver 2",) if is_driver else ("driver 1",))
    (tuned,) = gemm_tuning.tune([MATMUL if is_driver else replace(MATMUL, **change)])
    assert clock.calls > 0 and tuned.plan == "library"


def test_rows_that_cannot_be_cut_so_keep_the_rule(card: Any) -> None:
    clock = card(prefer(Form.RING), library=Library(lambda rows, shape: rows < 4))
    assert gemm_tuning.tune([MATMUL])[0].note == ""
    assert set(clock.library.chosen) == {(0, rows) for rows in range(4, 9)}


def test_a_failed_measurement_leaves_the_rule_and_is_tried_again(
    card: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(shape: GemmShape) -> float:
        if shape.form == Form.RING:
            raise ValueError("the clock stands still")
        return 1e-6

    clock = card(broken)
    (tuned,) = gemm_tuning.tune([MATMUL])
    assert clock.library.chosen == {(0, 8): rule_of(MATMUL, 8)}
    assert tuned.plan == "the rule's" and tuned.note == "the clock stands still"
    assert "is not measured: the clock stands still" in caplog.text
    card(prefer(Form.RING))
    assert gemm_tuning.tune([MATMUL])[0].note == ""


def test_a_refused_plan_is_a_failed_measurement(card: Any) -> None:
    card(prefer(Form.RING), library=Library(lambda rows, shape: shape.form == Form.RING))
    (tuned,) = gemm_tuning.tune([MATMUL])
    assert "a plan is refused; got ring up to 8 rows, " in tuned.note


def test_operands_that_no_kernel_takes_are_left_to_the_library(card: Any) -> None:
    clock = card(prefer(Form.DENSE))
    (tuned,) = gemm_tuning.tune([replace(MATMUL, operand="float8_e4m3fn")])
    assert (tuned.plan, tuned.note) == ("library", "no kernel takes such operands")
    assert clock.calls == 0 and not clock.library.chosen


def test_without_a_gpu_the_rule_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mi300_inductor.arch.detect", lambda device: None)
    tuned = gemm_tuning.tune([MATMUL, replace(MATMUL, rows=16)])
    assert [one.plan for one in tuned] == ["the rule's"] * 2
    assert tuned[0].note.startswith("gemm_tuning: no supported GPU; got none as cuda:0, expected")


def test_the_report_shows_plans_and_times(card: Any) -> None:
    card(prefer(Form.RING))
    good = gemm_tuning.tune([MATMUL])
    card(lambda shape: 1 / 0, ("driver 3",))
    bad = gemm_tuning.tune([replace(MATMUL, first_rows=1, rows=1)])
    graph = GraphReport("0/0 inference", "inference", tuned=(*good, *bad))
    report = Report.of((graph, replace(graph, name="0/1 inference")))
    text, page = str(report), report_html(report)
    lines = [line.split() for line in text.splitlines()]
    (won,) = (line for line in lines if line[:3] == ["2", "to", "8"])
    assert " ".join(won).endswith(
        "ring up to 8 rows, 4 waves, tiles of 16, k in 16, 4 stages deep 3.4 9 9"
    )
    (failed,) = (line for line in lines if line[:1] == ["1"] and "not" in line)
    assert " ".join(failed).endswith("not measured: division by zero - - -")
    assert page.count("96 x 2048 float8_e4m3fnuz to bfloat16") == 2
    data = json.loads(report.to_json())["graphs"][0]
    del data["counts"]
    assert GraphReport.from_dict(data) == graph


def compiled_report(constant: float = 1.0, **options: Any) -> GraphReport:
    def model(x: Tensor) -> Tensor:
        return x.sin() + constant

    torch._dynamo.reset()
    torch.compile(model, backend="mi300", options={"disable": KINDS, **options})(torch.ones(7))
    return mi.last_report().graphs[-1]


def test_a_cached_graph_chooses_its_plans_again(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a hit of Inductor's cache the pass does not run; the stored report names the kinds."""
    monkeypatch.setattr(gemm_tuning, "classes_of", lambda graph: [MATMUL])
    constant = random.SystemRandom().random()  # a graph that the cache cannot have
    first_clock = card(prefer(Form.RING))
    first = compiled_report(constant, measure=True)
    assert first.tuned and not first.cached and first_clock.calls > 0
    second_clock = card(prefer(Form.DENSE))
    second = compiled_report(constant, measure=True)
    assert second.cached and second.tuned == first.tuned and second_clock.calls == 0
    assert second_clock.library.chosen == {
        (0, rows): first_clock.library.chosen[0, 8] for rows in range(2, 9)
    }
    assert compiled_report(constant).tuned == ()
    assert FusionPass({"measure": True}).uuid() is None


def test_a_graph_that_is_not_understood_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(graph: fx.Graph) -> list[GemmClass]:
        raise KeyError("val")

    monkeypatch.setattr(gemm_tuning, "classes_of", broken)
    assert compiled_report(measure=True, fx_graph_cache=False).tuned == ()
    assert "the plans of the matmuls are not measured: 'val'" in caplog.text
