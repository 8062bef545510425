"""The comparison: reads curves rightly, pairs by seed, calls no difference none, keeps runs."""

import numpy as np
import pytest

import compare


def rows(*curve, episodes=64, every=2):
    """Rows of a run that was evaluated at the start and then every second iteration."""
    lines = [{"episodes": 0, "eval_success": curve[0]}]
    for value in curve[1:]:
        lines += [{"episodes": episodes, "eval_success": None}] * (every - 1)
        lines += [{"episodes": episodes, "eval_success": value}]
    return lines


def test_curve_and_episodes_to_a_level():
    run = rows(0.2, 0.6, 1.0)
    episodes, success = compare.curve(run)
    assert episodes.tolist() == [0, 128, 256] and success.tolist() == [0.2, 0.6, 1.0]
    assert compare.episodes_to(run, 0.8) == pytest.approx(192)
    assert compare.episodes_to(run, 0.6) == pytest.approx(128)
    assert compare.episodes_to(run, 0.1) == 0
    assert np.isnan(compare.episodes_to(rows(0.2, 0.3), 0.8))


def test_intervals():
    assert compare.interval([2, 2, 2], ".0f") == "2 [2, 2]"
    text = compare.interval([1.0, 2.0, 3.0, 4.0, 5.0], ".1f")
    assert text.startswith("3.0 [") and text.endswith("]")
    assert compare.interval([1.0, np.nan], ".1f") == "not reached by 1 of 2"


def test_differences_are_paired_by_seed():
    """Each seed 64 episodes sooner: the difference has no spread though the seeds have."""
    slow = [rows(0.0, 0.8), rows(0.0, 0.8, episodes=96)]
    fast = [rows(0.0, 0.8, episodes=32), rows(0.0, 0.8, episodes=64)]
    table = compare.table({"grpo": slow, "other": fast})
    assert "| other |" in table and "-64 [-64, -64]" in table


def test_finished_runs_are_kept_and_unfinished_ones_continued(tmp_path):
    seeds = tmp_path / "seeds.txt"
    seeds.write_text("0\n1\n")
    options = ["--tasks", "1", "--group-size", "2", "--eval-seeds", str(seeds)]
    first = compare.run(tmp_path / "run", "grpo", 1, [*options, "--iterations", "1"])
    second = compare.run(tmp_path / "run", "grpo", 1, [*options, "--iterations", "2"])
    assert len(first) == 2 and len(second) == 3 and second[:2] == first
    assert compare.run(tmp_path / "run", "grpo", 1, [*options, "--iterations", "2"]) == second
