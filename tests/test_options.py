"""What a user may write in `options=`, and the words that refuse the rest."""

import dataclasses

import pytest
import torch

from mi300_inductor.options import KINDS, Expectation, Options


def test_defaults_when_nothing_is_given():
    options = Options.parse()
    assert options == Options((), False, None, frozenset(), False, ())
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.strict = True


def test_own_options_are_parsed(tmp_path):
    options = Options.parse(
        options={
            "expect": {"rms_norm": 2, "silu_mul": (1, 3), "total:skinny_gemm": [4, 5]},
            "strict": True,
            "debug_dir": tmp_path,
            "disable": ["add_rms_norm"],
            "check_numerics": True,
        }
    )
    assert options.expect == (
        Expectation("rms_norm", 2, 2),
        Expectation("silu_mul", 1, 3),
        Expectation("skinny_gemm", 4, 5, is_total=True),
    )
    assert [str(item) for item in options.expect] == [
        "rms_norm: 2",
        "silu_mul: 1 to 3",
        "total:skinny_gemm: 4 to 5",
    ]
    assert (options.strict, options.check_numerics) == (True, True)
    assert options.debug_dir == str(tmp_path)
    assert options.disable == {"add_rms_norm"}


def test_inductor_options_and_mode_are_passed_on():
    options = Options.parse(options={"mode": "reduce-overhead", "epilogue_fusion": False})
    assert dict(options.inductor) == {"triton.cudagraphs": True, "epilogue_fusion": False}
    assert Options.parse(mode="reduce-overhead").inductor == (("triton.cudagraphs", True),)
    assert Options.parse("default", {"mode": "default"}).inductor == ()


def test_options_can_be_hashed_when_inductor_options_can():
    given = {"expect": {"rms_norm": 1}, "max_autotune": True}
    assert hash(Options.parse(options=given)) == hash(Options.parse(options=dict(given)))


def test_unknown_name_lists_ours_and_guesses():
    with pytest.raises(RuntimeError) as error:
        Options.parse(options={"exepct": {"rms_norm": 1}})
    text = str(error.value)
    assert text.startswith("options: unknown name; got 'exepct', expected one of check_numerics, ")
    for name in ("debug_dir", "disable", "expect", "mode", "strict"):
        assert name in text
    assert "Did you mean 'expect'?" in text
    assert Options.parse(options={"_micro_pipeline_tp": True}).inductor
    assert len(text) < 400 and "torch._inductor.list_options()" in text
    assert "max_autotune" in torch._inductor.list_options()
    with pytest.raises(RuntimeError, match="options: a name is no string; got 3, expected one of"):
        Options.parse(options={3: True})
    with pytest.raises(RuntimeError, match="Did you mean 'max_autotune'"):
        Options.parse(options={"max_autotun": True})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strict": 1}, "strict is a switch; got 1, expected True or False"),
        ({"check_numerics": "yes"}, "check_numerics is a switch; got 'yes'"),
        ({"debug_dir": 3}, "debug_dir is a path; got 3"),
        ({"debug_dir": __file__}, "debug_dir is a file; got"),
        ({"debug_dir": ""}, "debug_dir is a path; got ''"),
        ({"disable": "rms_norm"}, "disable is a list of kinds; got 'rms_norm'"),
        ({"disable": ["rmsnorm"]}, "unknown kind in disable; got 'rmsnorm', expected one of rms_"),
        ({"expect": 3}, "expect is a dict; got 3"),
        ({"expect": {"norm": 1}}, "unknown kind in expect; got 'norm', expected one of rms_norm"),
        (
            {"expect": {"total:norm": 1}},
            "unknown kind in expect; got 'total:norm', expected one of",
        ),
        ({"expect": {3: 1}}, "unknown kind in expect; got 3"),
        ({"expect": {"rms_norm": -1}}, "expect['rms_norm'] is a number of fusions; got -1"),
        ({"expect": {"rms_norm": True}}, "is a number of fusions; got True"),
        ({"expect": {"rms_norm": 1.0}}, "is a number of fusions; got 1.0"),
        ({"expect": {"rms_norm": (3, 1)}}, "is a number of fusions; got (3, 1)"),
        ({"expect": {"rms_norm": (1, 2, 3)}}, "is a number of fusions; got (1, 2, 3)"),
        ({"mode": "fastest"}, "Inductor refuses a value; got mode='fastest'"),
        ({"max_autotune": "yes"}, "Inductor refuses a value"),
        (
            {"expect": {"rms_norm": torch.ones(50, 50)}},
            "is a number of fusions; got a tensor float32[50, 50], expected",
        ),
        ({"disable": torch.ones(300)}, "unknown kind in disable; got a tensor float32[]"),
        ({"expect": [torch.ones(300)]}, "expect is a dict; got [a tensor float32[300]], expected"),
    ],
)
def test_bad_value_says_what_was_got_and_expected(options, words):
    with pytest.raises(RuntimeError) as error:
        Options.parse(options=options)
    assert words in str(error.value)
    assert str(error.value).startswith("options: ") and len(str(error.value)) < 800


@pytest.mark.parametrize("options", [3, "strict", ["strict"]])
def test_options_that_are_no_dict_are_refused(options):
    with pytest.raises(RuntimeError, match="options: the options are no dict; got"):
        Options.parse(options=options)


def test_two_different_modes_are_refused():
    with pytest.raises(RuntimeError, match="two modes; got mode='reduce-overhead'"):
        Options.parse("reduce-overhead", {"mode": "max-autotune"})


def test_cache_key_covers_what_changes_the_code_and_nothing_else(tmp_path):
    plain = Options.parse().cache_key()
    checks = {"expect": {"rms_norm": 1}, "strict": True, "debug_dir": str(tmp_path)}
    assert Options.parse(options=checks).cache_key() == plain
    keys = {Options.parse(options={"disable": [kind]}).cache_key() for kind in KINDS}
    assert len(keys | {plain}) == len(KINDS) + 1
    assert Options.parse(options={"check_numerics": True}).cache_key() != plain


def test_every_inductor_option_is_a_valid_name():
    config = torch._inductor.config
    assert Options.parse(options={"pattern_matcher": config.pattern_matcher}).inductor == (
        ("pattern_matcher", config.pattern_matcher),
    )
