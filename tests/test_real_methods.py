"""Every method on ALFWorld and WebShop with their small policies, from options to checkpoint."""

import importlib
import json
import math
import sys

import pytest
from conftest import HOUSE
from real_runs import EXTRA, METHODS, OPTIONS, REFUSALS, right_actions, train

import common

PAPERS = {"alfworld": {"reward": 10, "max_episode_steps": 50}}
PAPERS["webshop"] = {"win_reward": 10, "max_episode_steps": 15}


@pytest.mark.parametrize("env", OPTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_two_iterations(method, env, tmp_path, capsys):
    few = {"tasks": 2, "group_size": 4, "max_new_tokens": 12, "invalid_penalty": 0.1}
    few |= {"continuations": 2} if method == "prover" else {}
    if reason := REFUSALS.get((method, env)):
        with pytest.raises(SystemExit) as exit_:
            train(method, env, tmp_path, **few)
        line = capsys.readouterr().err.splitlines()[-1]
        assert exit_.value.code == 2 and line.startswith(f"{method}.py: error: cannot ")
        assert repr(env) in line and line.endswith(reason)
        return
    start, *rows = train(method, env, tmp_path, **few)
    assert [start["iteration"], *(row["iteration"] for row in rows)] == [0, 1, 2]
    for row in (start, *rows):
        assert all(math.isfinite(x) for x in row.values() if isinstance(x, (int, float)))
    for row in rows:
        assert (row["episodes"], row["failed"]) == (8, 0) and row["success"] >= 1 / 4
        steps = row["env_steps"] - row["extra_steps"]
        assert 8 < steps <= 8 * OPTIONS[env]["max_episode_steps"]
        assert row["mean_abs_advantage"] > 0 < row["grad_norm"] and row["ratio_error"] < 1e-4
        extra = {key for key in ("extra_passes", "extra_steps") if row[key]}
        assert extra == ({EXTRA[method]} if method in EXTRA else set())
    assert start["eval_success"] is not None is not rows[-1]["eval_success"]
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    common.load_policy(common.Args(model=str(tmp_path / "run" / "model")))


@pytest.mark.parametrize("method", METHODS)
def test_the_papers_settings(method, monkeypatch):
    """Every method reads both files, and what comes after the file counts."""
    module = importlib.import_module(method)
    for env, options in PAPERS.items():
        file = f"@{HOUSE}/real_envs/{env}.args"
        monkeypatch.setattr(sys, "argv", [f"{method}.py", file, "--lr", "1e-5", "--tasks", "2"])
        args = common.parse_args(module.Args)
        assert (args.env, args.lr, args.tasks, args.group_size) == (env, 1e-5, 2, 8)
        assert (args.kl, args.invalid_penalty, args.clip, args.iterations) == (0.01, 0.1, 0.2, 150)
        assert (args.temperature, args.eval_temperature, args.max_new_tokens) == (1.0, 0.4, 512)
        assert args.model == "Qwen/Qwen2.5-1.5B-Instruct"
        assert json.loads(args.env_options) == options


@pytest.mark.parametrize("env", OPTIONS)
def test_the_papers_rewards_and_turns(env):
    options = PAPERS[env] | {k: v for k, v in OPTIONS[env].items() if k == "games"}
    (task,) = common.make_envs(env, 1, json.dumps(options))
    script = [action for _, action in right_actions(task, 1)]
    task.reset(seed=1)
    assert [task.step(action)[1] for action in script] == [0] * (len(script) - 1) + [10]
    task.reset(seed=1)
    ends = [task.step("dance")[2:4] for _ in range(options["max_episode_steps"])]
    assert ends == [(False, False)] * (len(ends) - 1) + [(False, True)]


def test_a_file_of_options_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grpo.py", "@no/such.args"])
    with pytest.raises(SystemExit) as exit_:
        common.parse_args(common.Args)
    assert exit_.value.code == 2 and "no/such.args" in capsys.readouterr().err.splitlines()[-1]
