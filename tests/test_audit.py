"""The audit: its measures on known answers, its two truths against each other, its commands."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import HOUSE, walk

import audit
import common
import snr
import truth


@pytest.fixture(scope="module")
def yardstick():
    """Groups on KeyDoor 4 x 4 by a table, with exact truth."""
    (env,), rng = common.make_envs("keydoor", 1, '{"size": 4}'), np.random.default_rng(0)
    tasks = rng.integers(1000, size=12).repeat(8)
    env = truth.Measured(env)
    return env, *map(list, truth.play_table(env, tasks, truth.hasty, rng))


def flat(episodes, advantages):
    return audit.flatten(episodes, [np.array([a, 0 * a, a, a]) for a in advantages])


def ranks(yardstick, name):
    env, episodes, advantages, _ = yardstick
    credit = np.concatenate(audit.METHODS[name](None, [env], episodes))
    return audit.measures(credit, flat(episodes, advantages))


def test_oracle_is_1_and_shuffled_credit_is_0(yardstick):
    _, episodes, advantages, _ = yardstick
    data = flat(episodes, advantages)
    perfect = audit.with_intervals(3 * data["true"], data)
    for key in ("rank", "failed", "solved", "sign", "SNR"):
        assert perfect[key] == pytest.approx((1, 1, 1), abs=1e-9)
    shuffled = np.random.default_rng(0).permutation(data["true"])
    for key in ("rank", "failed", "solved", "SNR"):
        value, low, high = audit.with_intervals(shuffled, data)[key]
        assert low < 0 < high and abs(value) < 0.1


def test_the_pattern_on_the_yardstick(yardstick):
    """A numpy trial had Spearman .22 GRPO, .23 GiGPO, .65 GraphGPO, .83 its graph part alone."""
    rank = {name: ranks(yardstick, name)["rank"] for name in audit.METHODS if name in (
        "grpo", "gigpo", "graphgpo", "graph part")}  # fmt: skip
    assert 0.05 < rank["grpo"] < 0.35 and 0.05 < rank["gigpo"] < 0.35
    assert 0.5 < rank["graphgpo"] < 0.75 < rank["graph part"] < 0.9
    assert ranks(yardstick, "graph part")["blamed"] < 0.05 < ranks(yardstick, "grpo")["blamed"]


def test_alias_cuts_the_graph_part(yardstick):
    options = '{"size": 4, "alias": true}'
    (env,), rng = common.make_envs("keydoor", 1, options), np.random.default_rng(0)
    tasks = rng.integers(1000, size=12).repeat(8)
    env = truth.Measured(env)
    hidden = env, *truth.play_table(env, tasks, truth.hasty, rng)
    assert hidden[2][0].tolist() == yardstick[2][0].tolist()  # the same play: only the keys differ
    assert ranks(hidden, "graph part")["rank"] < ranks(yardstick, "graph part")["rank"] - 0.1
    assert ranks(hidden, "grpo")["rank"] == pytest.approx(ranks(yardstick, "grpo")["rank"])


def test_dynamic_programming_against_all_ways():
    """V, by going through every action (and slip) of a short game."""
    (env,) = common.make_envs("keydoor", 1, '{"size": 3, "slip": 0.4}')
    env.reset(seed=3)
    world = env.unwrapped
    chances, horizon = truth.hasty(world, 0.8), 7
    index, _, values, advantages = truth.solve(world, chances, horizon)

    def value(state, left):
        if (end := world.outcome(state)) is not None or not left:
            return end or 0.0
        return sum(p * q for p, q in zip(chances(state), action_values(state, left)))

    def action_values(state, left):
        after = [value(world.transition(state, a), left - 1) for a in world.actions]
        return [0.6 * v + 0.4 * np.mean(after[:4]) if i < 4 else v for i, v in enumerate(after)]

    assert values[horizon - 4, index[world.state]] == pytest.approx(value(world.state, 4))
    near = next(s for s in index if s[1] is None and s[2] and world.distance(s) == 2)
    exact = np.array(action_values(near, 4)) - value(near, 4)
    assert advantages[horizon - 4, index[near]] == pytest.approx(exact)
    assert np.ptp(exact) > 0.1


class Table:
    """The language model's place at the table: `rollout` plays by `chances`, whatever the model's
    logits say, for they are divided by a huge temperature and the table comes as a logit bias."""

    def __init__(self, policy, world, chances):
        self.tokens = [policy.encode(a)[0] for a in world.actions]
        self.chances = chances
        policy.args = common.Args(temperature=1e9)

    def __call__(self, episode):
        info = episode.steps[-1].info if episode.steps else episode.initial_info
        return {k: 50 + np.log(p) for k, p in zip(self.tokens, self.chances(info["state"]))}


@pytest.mark.parametrize("slip", [0.0, 0.5])
def test_monte_carlo_agrees_with_dynamic_programming(policy, monkeypatch, slip):
    """The whole way of the audit, with prefixes, tokens and luck: only the policy is in a table."""
    options = json.dumps({"size": 3, "max_episode_steps": 10, "slip": slip})
    envs, K = common.make_envs("keydoor", 120, options), 120
    envs[0].reset(seed=3)
    world = envs[0].unwrapped
    chances = truth.hasty(world, 0.7)
    index, _, values, advantages = truth.solve(world, chances, 10)
    table, rollout = Table(policy, world, chances), common.rollout
    monkeypatch.setattr(common, "rollout", lambda *a, **k: rollout(*a, **k, logit_bias=table))

    def truth_of(episode):
        taken = [(index[s.state], world.actions.index(s.action.strip())) for s in episode.steps]
        return np.array([advantages[t, state, action] for t, (state, action) in enumerate(taken)])

    played = common.rollout(policy, envs[:12], [3] * 12)
    episode = max(played, key=lambda e: np.ptp(truth_of(e)))
    exact = truth_of(episode)
    picks = [(0, t) for t in {0, exact.argmin(), exact.argmax(), len(exact) - 1}]

    def sample(jobs):
        return [truth.outcomes(policy, envs, *job) for job in jobs]

    found = truth.estimate([episode], picks, slip > 0, K, sample)[0]
    picked = [t for _, t in picks]
    mean, error = found[:2, picked]
    assert (abs(mean - exact[picked]) <= 3 * error + 1e-9).all() and np.ptp(exact) > 0.1
    assert (error < 0.08).all() and np.isfinite(found[0]).sum() == len(picks)


def test_same_seed_same_outcomes(policy, envs):
    torch.manual_seed(3)
    (episode,) = common.rollout(policy, envs, [3])
    first, second, other = (truth.outcomes(policy, envs, episode, 2, False, s) for s in (1, 1, 2))
    assert (first == second).all() and len(other) == len(envs)


def test_values_are_shared_and_ends_are_known():
    episodes, asked = [walk(7, "ABCG", 1), walk(7, "ABC")], []

    def sample(jobs):
        asked.extend((e is episodes[0], t) for e, t, _, _ in jobs)
        return [np.array([0.0, t]) for _, t, _, _ in jobs]

    found = truth.estimate(episodes, [(0, 1), (0, 2), (1, 1)], False, 2, sample)
    assert sorted(asked) == [(False, 1), (True, 1), (True, 2)]
    assert found[0][0, 1:].tolist() == [0.5, 0.0] and found[1][0, 1] == -0.5
    assert found[0][2:, 2].tolist() == [1.0, -1.0]  # either half of the continuations


def test_waste_of_the_worked_example():
    """methods.md 12.1: progress in 1 of 6 failed steps, none in 1 of 8 successful ones."""
    group = [walk(7, "ABCG", 10), walk(7, "ABDBCG", 10), walk(7, "ADEE"), walk(7, "ABDE")]
    lost = [walk(8, "ABC"), walk(8, "AC")]  # nobody succeeds: not counted
    gains = audit.observed_gains(group + lost)
    assert audit.waste(group + lost, gains) == pytest.approx([1 / 6, 1 / 8])
    assert gains[1].tolist() == [1, -1, 1, 1, 1]


def test_progress_is_that_of_the_task():
    env = truth.Measured(common.make_envs("keydoor", 1)[0])
    _, info = env.reset(seed=1)
    episode = common.Episode(1, [], initial_info=info)
    for action in (env.unwrapped.best_actions()[0], "toggle"):
        episode.steps.append(common.Step("", action, info=env.step(action)[-1]))
    assert audit.progress(episode).tolist() == [1, 0]


def test_measures_on_a_hand_made_case():
    data = {
        "true": np.array([0.4, -0.2, 0.1, np.nan, -0.3]),
        "error": np.array([0.1, 0.05, 0.2, np.nan, 0.0]),  # the third sign is not sure
        "half 1": np.array([0.4, -0.2, 0.1, np.nan, -0.3]),
        "half 2": np.array([0.4, -0.2, 0.1, np.nan, -0.3]),
        "progress": np.array([1, 0, 1, 1, np.nan]),
        "success": np.array([True, True, False, False, False]),
    }
    found = audit.measures(np.array([1.0, 1.0, -1.0, 0.0, -1.0]), data)
    assert found["sign"] == pytest.approx(2 / 3)  # right: the first and the last, wrong: the second
    assert found["coverage"] == pytest.approx(4 / 5)
    assert found["blamed"] == pytest.approx(1 / 3) and found["praised"] == pytest.approx(1 / 2)
    assert found["SNR"] == pytest.approx(0.1 / 0.075**0.5)


def test_snr_of_shared_and_of_isolated_credit():
    """1 / sqrt(length) and 1 / sqrt(forks), times sqrt(7/8) for groups of eight."""
    for length, density in ((16, 0.25), (16, 1.0), (36, 1 / 9)):
        rules = {"grpo": audit.METHODS["grpo"]}
        found = snr.fork_snr(length, density, rules, groups=40, seed=0)
        part = (7 / 8) ** 0.5
        assert found["grpo"] == pytest.approx(part / length**0.5, rel=0.12)
        assert found["grpo, forks only"] == pytest.approx(
            part / (length * density) ** 0.5, rel=0.12
        )
    assert found == snr.fork_snr(length, density, rules, groups=40, seed=0)
    assert snr.slope([1, 2, 4], [8, 4, 2]) == pytest.approx(-1)


def run(*options):
    command = [sys.executable, str(HOUSE / "audit.py"), *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_command_by_monte_carlo(tmp_path):
    short = '{"size": 3, "max_episode_steps": 12}'
    done = run("--groups", "2", "--group-size", "4", "--steps", "3", "--continuations", "8",
               "--env", "keydoor", "--env-options", short, "--methods", "grpo,sharpo",
               "--slip", "0.1", "--out", str(tmp_path / "out.json"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| sharpo |" in done.stdout and "Warning" not in done.stderr
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert set(results) == {"clean", "slip"} and results["clean"]["audited"] == 3


def test_command_shows_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["audit.py", "--exact", "--groups", "3", "--show"])
    args = audit.parse_args()
    pytest.importorskip("matplotlib")
    audit.show(audit.audit(args, args.env_options), tmp_path / "show.png")
    text = capsys.readouterr().out
    assert "failed, task" in text and "solved, task" in text and "\033[30;48;2;" in text
    assert (tmp_path / "show.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "options",
    [["--methods", "nonsense"], ["--exact", "--methods", "sharpo"], ["--out", str(HOUSE)]],
)
def test_mistakes_are_one_clear_line(options):
    done = run(*options)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_same_seed_same_numbers(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["audit.py", "--exact", "--groups", "3"])
    args = audit.parse_args()
    torch.manual_seed(5)
    first, second = (audit.audit(args, args.env_options) for _ in range(2))
    for kind in (1, 3):
        assert str(first[kind]) == str(second[kind])
