"""The scripts as a user runs them: learning, log, resume, Ctrl-C, and mistakes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import HOUSE, walk

import common
import grpo

SCRIPTS = ["grpo.py", *sorted(f"methods/{p.name}" for p in (HOUSE / "methods").glob("*.py"))]
SMALL = ["--tasks", "2", "--group-size", "3", "--eval-every", "2"]


@pytest.fixture(scope="session")
def few(tmp_path_factory):
    """A small panel of held-out tasks."""
    path = tmp_path_factory.mktemp("seeds") / "seeds.txt"
    path.write_text("0\n1\n2\n3\n")
    return str(path)


def start(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], cwd=HOUSE, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


def rows(folder):
    """The metrics without what a clock had a part in."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "_per_s")
    return [{k: v for k, v in line.items() if not k.endswith(timed)} for line in lines]


@pytest.mark.parametrize("script", SCRIPTS)
def test_smoke(script, tmp_path, few):
    """Every script runs, says how it went and where the files are, and writes the same keys."""
    out = tmp_path / "run"
    code, text, err = run(script, *SMALL, "--iterations", 2, "--out", out, "--eval-seeds", few)
    assert code == 0, err
    assert "held-out success" in text and str(out) in text
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    assert [line["eval_success"] is None for line in lines] == [False, True, False]
    keys = """iteration held_out episodes success return length truncated dead_groups singletons
        invalid failed coverage mean_abs_advantage ratio_error clip_fraction kl entropy grad_norm
        policy_tokens env_steps extra_passes extra_tokens extra_steps rollout_tokens_per_s
        update_tokens_per_s seconds credit_seconds eval_success"""
    assert all(set(line) >= set(keys.split()) for line in lines)  # a method may add its own
    assert lines[1]["episodes"] == 6 and lines[1]["policy_tokens"] > 0
    common.load_policy(common.Args(model=str(out / "model")))


def test_resume_is_the_same_run(tmp_path, few):
    """6 iterations, or 3, save, a new process and 3 more: the same metrics and weights."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    base = ["methods/gigpo.py", *SMALL, "--eval-every", "3", "--eval-seeds", few, "--lr", "1e-3"]
    assert run(*base, "--iterations", 6, "--out", whole)[0] == 0
    assert run(*base, "--iterations", 3, "--out", halves)[0] == 0
    code, _, err = run("methods/gigpo.py", "--resume", halves, "--iterations", 6)
    assert code == 0, err
    assert rows(whole) == rows(halves) and len(rows(whole)) == 7
    states = [torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (whole, halves)]
    for name, weight in states[0]["weights"].items():
        assert torch.equal(weight, states[1]["weights"][name])


def test_ctrl_c_leaves_a_resumable_checkpoint(tmp_path, few):
    out = tmp_path / "run"
    process = start("grpo.py", *SMALL, "--iterations", 500, "--eval-every", 500,
                    "--out", out, "--eval-seeds", few)  # fmt: skip
    metrics, deadline = out / "metrics.jsonl", time.time() + 60
    while time.time() < deadline and (not metrics.exists() or metrics.read_text().count("\n") < 3):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    text, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in err, err
    done = torch.load(out / "checkpoint.pt", weights_only=True)["iteration"]
    assert done >= 2 and rows(out)[-1]["iteration"] == done and str(out) in text
    code, _, err = run("grpo.py", "--resume", out, "--iterations", done + 1)
    assert code == 0 and rows(out)[-1]["iteration"] == done + 1, err


def test_mistakes_in_a_new_process():
    """One clear line, exit code 2, no traceback."""
    for arguments, words in [
        (["--env", "nosuch"], "cannot make the environment 'nosuch'"),
        (["--model", "nosuch"], "cannot load the model 'nosuch'"),
    ]:
        code, _, err = run("grpo.py", *arguments)
        assert code == 2 and words in err and len(err.splitlines()) == 1, err
    assert not list(HOUSE.glob("runs/*nosuch*"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory, few):
    """The folder of a small finished run."""
    out = tmp_path_factory.mktemp("runs") / "run"
    args = common.Args(tasks=1, group_size=2, iterations=1, out=str(out), eval_seeds=few)
    grpo.train(grpo.Args(**vars(args)))
    return out


def resumed(folder, **changes):
    """The options of --resume, as parse_args reads them."""
    saved = json.loads((folder / "args.json").read_text())
    return grpo.Args(**{**saved, "resume": str(folder), **changes})


def snapshot(folder):
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*")}


def fails(capsys, call, *words):
    """Whether the call ends as a user's mistake should."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as error:
        call()
    err = capsys.readouterr().err
    assert error.value.code == 2 and len(err.splitlines()) == 1
    assert all(word in err for word in words), err
    return True


@pytest.mark.parametrize(
    "change, words",
    [
        ({"env": "nosuch"}, ["nosuch"]),
        ({"env": "CartPole-v1"}, ["does not take text"]),
        ({"env_options": "{size: 3}"}, ["environment"]),
        ({"env_options": '{"sizes": 3}'}, ["sizes"]),
        ({"env_options": '{"size": 1}'}, ["size of at least 3"]),
        ({"model": "nosuch"}, ["nosuch"]),
        ({"model": "nosuch/model.gguf"}, ["model.gguf"]),
        ({"model": str(HOUSE / "tests")}, ["tests"]),
        ({"eval_seeds": "nosuch.txt"}, ["nosuch.txt"]),
        ({"eval_seeds": str(HOUSE / "README.md")}, ["held-out seeds", "README.md"]),
        ({"resume": "nosuch"}, ["nosuch"]),
    ],
)
def test_mistakes(capsys, tmp_path, change, words):
    out = tmp_path / "run"
    fails(capsys, lambda: common.Run(grpo.Args(**{"out": str(out), **change})), *words)
    assert not out.exists()


def test_a_run_folder_is_not_overwritten(capsys, finished):
    before = snapshot(finished)
    fails(capsys, lambda: common.Run(grpo.Args(out=str(finished))), "exists")
    assert snapshot(finished) == before


def test_resume_of_another_method(capsys, finished):
    import gigpo

    before = snapshot(finished)
    args = gigpo.Args(resume=str(finished))
    fails(capsys, lambda: common.Run(args), "grpo", "gigpo")
    assert snapshot(finished) == before


@pytest.mark.parametrize("damage", ["truncated", "empty", "missing", "foreign"])
def test_resume_of_a_damaged_checkpoint(capsys, finished, tmp_path, damage):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    path = out / "checkpoint.pt"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "missing":
        path.unlink()
    else:
        torch.save({"weights": {}}, path)
    before = snapshot(out)
    fails(capsys, lambda: common.Run(resumed(out)), str(out))
    assert snapshot(out) == before


def test_a_run_that_died_while_saving_goes_on_from_the_checkpoint_before(finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "unfinished.pt").write_bytes(b"half")
    again = common.Run(resumed(out))
    assert again.iteration == 1
    again.iteration = 2
    again.save()
    assert common.Run(resumed(out)).iteration == 2
    assert not (out / "unfinished.pt").exists()


def test_options_on_the_command_line_win_over_resumed_ones(finished, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["grpo.py", "--resume", str(finished), "--lr", "0.5"])
    args = common.parse_args(grpo.Args)
    assert (args.lr, args.group_size, args.tasks) == (0.5, 2, 1)


def test_counts_below_one(monkeypatch, capsys):
    for name in ("tasks", "group-size", "eval-every"):
        monkeypatch.setattr(sys, "argv", ["grpo.py", f"--{name}", "0"])
        with pytest.raises(SystemExit) as error:
            common.parse_args(grpo.Args)
        assert error.value.code == 2 and "must be at least 1" in capsys.readouterr().err


def test_success_is_of_episodes_and_a_dead_group_is_one_of_equals(finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    run = common.Run(resumed(out))
    alive = [walk(1, "AB", 1.0), walk(1, "ABABABABAB")]  # 1 step, and 9
    for more, dead in (([], 0.0), ([walk(2, "AB")] * 2, 0.5)):
        episodes = [*alive, *more]
        run.log(episodes, common.update(run, episodes, [[0.0] * len(e.steps) for e in episodes]))
        row = run.rows[-1]
        assert row["success"] == 1 / len(episodes) and row["dead_groups"] == dead
        assert row["length"] == (10 + len(more)) / len(episodes)


def test_an_evaluation_can_be_repeated(finished, monkeypatch):
    run, rollout, played = common.Run(resumed(finished)), common.rollout, []

    def record(*args):
        played.append(rollout(*args))
        return played[-1]

    monkeypatch.setattr(common, "rollout", record)
    transcripts = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        run.evaluate()
        transcripts.append([e.token_ids for e in played[-1]])
    assert transcripts[0] == transcripts[1] and run.args.eval_temperature > 0


def test_any_seed(tmp_path, few):
    base = {"tasks": 1, "group_size": 1, "iterations": 1, "eval_seeds": few}
    grpo.train(grpo.Args(**base, seed=2**40, out=str(tmp_path / "run")))


def test_a_run_goes_on_with_the_same_data_only(capsys, finished, monkeypatch):
    from toy_envs.keydoor import KeyDoor

    monkeypatch.setattr(KeyDoor, "version", "other games", raising=False)
    fails(capsys, lambda: common.Run(resumed(finished)), "data of its environment")


def test_method_memory_comes_back(finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    args = resumed(out)
    memory = {"table": {("a", "b"): 1.5}, "seen": [1, 2], "bank": torch.arange(3.0)}
    first = common.Run(args, memory)
    first.iteration = 7
    first.save()
    again = {"table": {}}
    common.Run(args, again)
    assert again["table"] == memory["table"] and again["seen"] == [1, 2]
    assert torch.equal(again["bank"], memory["bank"])


def test_training_and_held_out_tasks_are_disjoint():
    run = common.Run.__new__(common.Run)
    run.args = common.Args(tasks=1000)
    seeds = set(run.next_tasks())
    panel = [common.TRAIN_SEEDS + int(n) for n in (HOUSE / "eval_seeds.txt").read_text().split()]
    assert max(seeds) < min(panel) and len(set(panel)) == len(panel) >= 100


def test_every_group_plays_one_task(finished):
    run = common.Run.__new__(common.Run)
    run.args = common.Args(tasks=5, group_size=3)
    tasks = run.next_tasks()
    assert [tasks[i : i + 3] for i in range(0, 15, 3)] == [[t] * 3 for t in tasks[::3]]
