"""The comparison: reads curves rightly, charges for extra tokens, pairs by seed, keeps runs."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import HOUSE

import compare


def rows(*curve, tokens=100, extra=0, every=2):
    """Rows of a run of 64 episodes an iteration, evaluated at the start and every second time."""
    spent = {"policy_tokens": tokens + extra, "extra_tokens": extra, "extra_passes": extra // 10}
    line = {"episodes": 64, "eval_success": None, "seconds": 2.0, "credit_seconds": 0.5, **spent}
    lines = [dict.fromkeys(line, 0) | {"eval_success": curve[0]}]
    for value in curve[1:]:
        lines += [line] * (every - 1) + [line | {"eval_success": value}]
    return lines


def test_curve_and_what_was_spent_to_a_level():
    run = rows(0.2, 0.6, 1.0)
    tokens, success = compare.curve(run)
    assert tokens.tolist() == [0, 200, 400] and success.tolist() == [0.2, 0.6, 1.0]
    assert compare.spent_to(run, 0.8) == pytest.approx(300)
    assert compare.spent_to(run, 0.8, "episodes") == pytest.approx(192)
    assert compare.spent_to(run, 0.6) == pytest.approx(200)
    assert compare.spent_to(run, 0.1) == 0
    assert np.isnan(compare.spent_to(rows(0.2, 0.3), 0.8))


def test_area_is_the_mean_height_up_to_the_budget():
    assert compare.area(rows(0.0, 1.0), 200) == pytest.approx(0.5, abs=1e-3)
    assert compare.area(rows(0.0, 1.0, 1.0), 400) == pytest.approx(0.75, abs=1e-3)


def test_whoever_spends_twice_the_tokens_is_charged_for_it():
    """The same success after the same episodes, half of the tokens a teacher's."""
    plain, costly = rows(0.0, 0.4, 0.8), rows(0.0, 0.4, 0.8, extra=100)
    assert compare.spent_to(costly, 0.8) == 2 * compare.spent_to(plain, 0.8)
    text = compare.tables({"grpo": [plain], "costly": [costly]}, 400)
    assert "| costly | 0.400 [0.400, 0.400] |" in text  # at the budget
    assert "| costly | -0.400 [-0.400, -0.400] |" in text and "| 50% [50%, 50%] |" in text


def test_intervals():
    assert compare.interval([2, 2, 2], ".0f") == "2 [2, 2]"
    text = compare.interval([1.0, 2.0, 3.0, 4.0, 5.0], ".1f")
    assert text.startswith("3.0 [") and text.endswith("]")
    assert compare.interval([1.0, np.nan], ".1f") == "not reached by 1 of 2"


def test_a_difference_whose_interval_holds_zero_is_none():
    assert compare.interval([-1.0, 1.0, 2.0], "+.1f", True).startswith("none: +0.7")
    assert compare.interval([1.0, 1.5, 2.0], "+.1f", True).startswith("+1.5")


def test_bootstrap_covers_the_mean_as_often_as_it_says():
    """Of 20 values each: 95 % in theory, a little less with so few."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(200):
        _, low, high = compare.bootstrap(rng.normal(size=20))
        covered += low <= 0 <= high
    assert 0.88 <= covered / 200 <= 0.98


def test_differences_are_paired_by_seed():
    """Each seed 100 tokens sooner: the difference has no spread though the seeds have."""
    slow = [rows(0.0, 0.8, tokens=150), rows(0.0, 0.8, tokens=250)]
    fast = [rows(0.0, 0.8, tokens=100), rows(0.0, 0.8, tokens=200)]
    text = compare.tables({"grpo": slow, "other": fast}, 100)
    assert "| difference to grpo |" in text and "-100 [-100, -100]" in text


def test_finished_runs_are_kept_and_unfinished_ones_continued(tmp_path):
    seeds = tmp_path / "seeds.txt"
    seeds.write_text("0\n1\n")
    options = ["--tasks", "1", "--group-size", "2", "--eval-seeds", str(seeds)]
    first = compare.run(tmp_path / "run", "grpo", 1, [*options, "--iterations", "1"])
    second = compare.run(tmp_path / "run", "grpo", 1, [*options, "--iterations", "2"])
    assert len(first) == 2 and len(second) == 3 and second[:2] == first
    assert compare.run(tmp_path / "run", "grpo", 1, [*options, "--iterations", "2"]) == second


def test_a_killed_comparison_goes_on_and_gives_the_same_table(tmp_path):
    seeds = tmp_path / "seeds.txt"
    seeds.write_text("0\n1\n")
    options = "--methods grpo,gigpo:step_weight=0.5 --seeds 1 --tasks 1 --group-size 2"
    options = [*options.split(), "--iterations", "12", "--eval-seeds", str(seeds)]
    tables = []
    for name, kill in (("whole", False), ("killed", True)):
        command = [sys.executable, "compare.py", *options, "--out", str(tmp_path / name)]
        if kill:
            process = subprocess.Popen(command, cwd=HOUSE, start_new_session=True)
            while not list((tmp_path / name).glob("*/*/checkpoint.pt")):
                time.sleep(0.05)
            subprocess.run(["pkill", "-KILL", "-g", str(process.pid)])
            process.wait()
        done = subprocess.run(command, cwd=HOUSE, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        tables.append(done.stdout.split("| method | success at the start")[0])
        lines = (tmp_path / name / "keydoor" / "grpo-1" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["iteration"] for line in lines] == list(range(13))
    assert tables[0] == tables[1] and "gigpo:step_weight=0.5" in tables[0]


def test_kept_runs_are_not_taken_for_others(tmp_path):
    seeds = tmp_path / "seeds.txt"
    seeds.write_text("0\n")
    base = ["--methods", "grpo", "--seeds", "1", "--tasks", "1", "--group-size", "1"]
    base += ["--eval-seeds", str(seeds), "--out", str(tmp_path)]

    def call(*options):
        command = [sys.executable, "compare.py", *base, *options]
        return subprocess.run(command, cwd=HOUSE, capture_output=True, text=True)

    assert call("--iterations", "1").returncode == 0
    assert call("--iterations", "2", "--eval-every", "1").returncode == 0
    other = call("--lr", "0.5", "--iterations", "2")
    assert other.returncode == 2 and "had other options" in other.stderr
    assert json.loads((tmp_path / "keydoor/grpo-1/args.json").read_text())["lr"] == 3e-4


def test_mistakes_are_one_line():
    for options in (["--methods", "grpo,magic"], ["--seeds", "0"], ["--env", "nowhere"]):
        done = subprocess.run(
            [sys.executable, "compare.py", *options], cwd=HOUSE, capture_output=True, text=True
        )
        assert done.returncode and "Traceback" not in done.stderr, done.stderr
