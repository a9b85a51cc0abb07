"""Inductor's cache and ours: what hits, what misses, and that the report survives."""

import json
import pickle
import shutil
import subprocess
import sys
import textwrap

import pytest

import mi300_inductor as mi
from mi300_inductor import build, fusion_pass, report_store
from mi300_inductor.options import Options
from mi300_inductor.report import GraphReport

# The graph is one operator, so that Inductor has no C++ to compile.
SCRIPT = """
import json, sys
import torch
import mi300_inductor as mi
from torch._dynamo.utils import counters

class Norm(torch.nn.Module):
    def forward(self, x, weight):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * wide.to(x.dtype)

x, weight = torch.randn(4, 32).bfloat16(), torch.randn(32).bfloat16()
options = json.loads(sys.argv[1])
result = {}
try:
    with torch.no_grad():
        got = torch.compile(Norm(), backend="mi300", options=options)(x, weight)
        torch.testing.assert_close(got, Norm()(x, weight), rtol=2**-7, atol=0)
except torch._dynamo.exc.BackendCompilerFailed as error:
    result["error"] = str(error)
result["report"] = json.loads(mi.last_report().to_json())
result["hits"] = counters["inductor"]["fxgraph_cache_hit"]
result["misses"] = counters["inductor"]["fxgraph_cache_miss"]
print("RESULT" + json.dumps(result))
"""


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Runs the script in a process of its own; all share one new Inductor cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))

    def run(**options):
        command = [sys.executable, str(tmp_path / "script.py"), json.dumps(options)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return {**json.loads(done.stdout.partition("RESULT")[2]), "log": done.stderr}

    run.reports = tmp_path / "inductor" / "mi300_inductor"
    return run


def test_other_processes_hit_and_have_the_report(process, monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "+mi300_inductor")
    first = process()
    assert (first["hits"], first["misses"]) == (0, 1)
    assert first["report"]["counts"] == {"rms_norm": 1}
    assert "graph 0/0 inference: fused 1 rms_norm; 0 refusals" in first["log"]
    second = process(expect={"rms_norm": 2})
    assert (second["hits"], second["misses"]) == (1, 0)
    assert "ContractError: expect: wrong number of fusions; got 1 of rms_norm" in second["error"]
    assert second["report"]["fused"] == first["report"]["fused"]
    old, new = first["report"]["graphs"][0], second["report"]["graphs"][0]
    assert (old["cached"], new["cached"]) == (False, True)
    assert (old["before"], old["after"]) == (new["before"], new["after"])
    # Without its report a cached graph is compiled again, and the report is back.
    (stored,) = process.reports.iterdir()
    stored.write_text('{"name": 3')
    third = process(strict=True)
    assert f"the stored report {stored} is not usable" in third["log"]
    assert third["hits"] == 1
    assert "error" not in third
    assert third["report"]["fused"] == first["report"]["fused"]
    assert third["report"]["graphs"][0]["cached"] is False
    assert json.loads(stored.read_text())["fused"] == first["report"]["fused"]


def test_passes_can_be_pickled_and_keep_their_uuid():
    one = mi.FusionPass({"disable": ["silu_mul"]})
    copy = pickle.loads(pickle.dumps(one))
    assert copy.options == one.options
    assert copy.uuid() == one.uuid()
    marks = mi.RoundingMarks()
    assert pickle.loads(pickle.dumps(marks)).uuid() == marks.uuid() != mi.FusionPass().uuid()


def test_uuid_follows_options_that_change_the_code():
    plain = mi.FusionPass().uuid()
    checked = Options(strict=True, debug_dir="x")
    assert fusion_pass.FusionPass(checked).uuid() == fusion_pass.FusionPass(Options()).uuid()
    assert mi.FusionPass({"disable": ["silu_mul"]}).uuid() != plain
    assert fusion_pass.FusionPass(Options(check_numerics=True)).uuid() != plain


def test_a_pass_set_by_hand_keeps_its_contracts_by_not_being_cached():
    for options in ({"strict": True}, {"expect": {"silu_mul": 5}}, {"debug_dir": "x"}):
        assert mi.FusionPass(options).uuid() is None


def test_uuid_follows_users_spellings(monkeypatch):
    plain = mi.FusionPass().uuid()
    monkeypatch.setattr("mi300_inductor.graph.user_spellings_key", lambda: "one more")
    assert mi.FusionPass().uuid() != plain


def test_hash_follows_every_source_file_at_once(tmp_path, monkeypatch):
    """An edit, a new file and a renamed one each change the hash in the running process."""
    copy = tmp_path / "csrc"
    shutil.copytree(build.csrc_dir(), copy)
    monkeypatch.setattr(build, "csrc_dir", lambda: copy)
    hashes = [fusion_pass.files_hash()]
    assert fusion_pass.files_hash() == hashes[0]
    source = next(copy.glob("gpu/*.hip"))
    source.write_text(source.read_text() + "// edited\n")
    hashes.append(fusion_pass.files_hash())
    (copy / "cpu" / "new.h").write_text("")
    hashes.append(fusion_pass.files_hash())
    source.rename(source.with_name("renamed.hip"))
    hashes.append(fusion_pass.files_hash())
    assert len(set(hashes)) == 4
    (copy / "notes.txt").write_text("no source")
    assert fusion_pass.files_hash() == hashes[-1]


def test_report_is_stored_whole_or_not_at_all(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(report_store.inductor, "report_directory", lambda: tmp_path / "reports")
    report = GraphReport("0/0 inference", "inference")
    report_store.store_report("key", report)
    assert report_store.load_report("key") == report
    assert report_store.load_report("other") is None
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["key.json"]
    assert (tmp_path / "reports").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(report_store.inductor, "report_directory", lambda: tmp_path / "file")
    with caplog.at_level("WARNING", "mi300_inductor"):
        report_store.store_report("key", report)
    assert "the report of graph 0/0 inference is not stored" in caplog.text


def test_importing_the_package_is_cheap_and_lazy():
    """Names are imported at their first use; until then neither torch nor networkx is."""
    code = """
        import sys
        import mi300_inductor
        loaded = {"torch", "networkx", "sympy", "tabulate"} & set(sys.modules)
        assert not loaded, loaded
        assert {"explain", "quantize_", "ops", "FusionPass"} <= set(dir(mi300_inductor))
        try:
            mi300_inductor.nothing
        except AttributeError as error:
            assert "nothing" in str(error)
        else:
            raise AssertionError("no AttributeError")
        assert callable(mi300_inductor.ops.rms_norm)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
