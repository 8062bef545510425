"""SHARPO: worked numbers, fallbacks, and the hindsight pass against its definition."""

import gear
import numpy as np
import pytest
import sharpo
import torch
from conftest import random_groups, walk

import common
import grpo

PAIR = [walk(7, "ABG", 1), walk(7, "ABC")]
UNIT = 0.5**0.5 / (0.5**0.5 + 1e-6) * 0.5**0.5  # |A| of a pair with outcomes 1 and 0


@pytest.mark.parametrize(
    "sign, gap, at_5, at_20",
    [(1, 0.5, 1.0122, 1.0490), (-1, 0.5, -0.9878, -0.9510), (-1, -3.0, -1.0453, -1.1810)],
)
def test_worked_numbers(sign, gap, at_5, at_20):
    for mix, expected in ((0.05, at_5), (0.2, at_20)):
        gaps = [np.array([gap, 0.0]), np.array([gap, 0.0])]
        advantages = sharpo.sharpo_advantages(PAIR, gaps, mix=mix)[0 if sign > 0 else 1]
        assert advantages / UNIT == pytest.approx([expected, sign], abs=1e-4)


def random_gaps(episodes, seed):
    rng = np.random.default_rng(seed)
    return [rng.choice([0.0, np.nan, 1e3, -1e3, 0.7, -2.0], len(e.steps)) for e in episodes]


def test_falls_back_to_grpo_to_the_last_bit():
    for seed in range(5):
        episodes = random_groups(seed)
        plain = grpo.grpo_advantages(episodes)
        nothing = [np.full(len(e.steps), np.nan) for e in episodes]
        for rule in (
            sharpo.sharpo_advantages(episodes, random_gaps(episodes, seed), mix=0.0),
            sharpo.sharpo_advantages(episodes, nothing, mix=0.8),
        ):
            assert all((a == b).all() for a, b in zip(plain, rule))


def test_sign_bounds_and_permutation():
    for seed in range(10):
        episodes = random_groups(seed)
        gaps = random_gaps(episodes, seed)
        plain = grpo.grpo_advantages(episodes)
        credit = sharpo.sharpo_advantages(episodes, gaps, mix=0.3)
        for a, b in zip(plain, credit):
            assert (np.sign(a) == np.sign(b)).all()
            assert (abs(b) >= 0.7 * abs(a) - 1e-12).all()
            assert (abs(b) <= 1.3 * abs(a) + 1e-12).all()
        order = np.random.default_rng(seed).permutation(len(episodes))
        shuffled = sharpo.sharpo_advantages(
            [episodes[i] for i in order], [gaps[i] for i in order], mix=0.3
        )
        for place, i in enumerate(order):
            assert shuffled[place] == pytest.approx(credit[i], abs=1e-12)


def test_the_attempt_is_the_shortest_other_success():
    long, short, failed = walk(1, "ABCG", 1), walk(1, "AG", 1), walk(1, "AB")
    other = walk(2, "AG", 1)
    group = [long, short, failed, other]
    assert [sharpo.attempt_for(e, group) for e in group] == [short, long, short, None]


@pytest.fixture
def played(policy, envs):
    torch.manual_seed(2)
    return common.rollout(policy, envs, [s for s in (3, 4, 5) for _ in range(8)])


def test_gaps_are_those_of_the_definition(policy, played):
    """From one plain pass over a text that is written down by hand."""
    gaps = sharpo.hindsight_gaps(policy, played)
    checked = 0
    for e, gap in zip(played, gaps):
        attempt = sharpo.attempt_for(e, played)
        if attempt is None:
            assert np.isnan(gap).all()
            continue
        story = " ".join(f"{s.observation} > {s.action}" for s in attempt.steps)
        text = f"reference {story} end " + " ".join(
            f"{s.observation} > {s.action}" for s in e.steps
        )
        ids = policy.encode(text)
        with torch.no_grad():
            logprobs = policy.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        at = len(policy.encode(f"reference {story} end"))
        for step, value in zip(e.steps, gap):
            at += len(policy.encode(f"{step.observation} >"))
            exact = logprobs[at - 1, ids[at]].item() - e.logprobs[step.tokens[0]]
            assert value == pytest.approx(exact, abs=1e-3)
            at, checked = at + 1, checked + 1
    assert checked > 100
    assert policy.meter["extra_passes"] == sum(not np.isnan(g).any() for g in gaps)


def test_hindsight_likes_what_the_attempt_did(policy, played):
    """The probe: in failed rollouts, turns that agree with the attempt are punished less."""
    gaps = sharpo.hindsight_gaps(policy, played)
    credit = sharpo.sharpo_advantages(played, gaps, mix=0.8)
    agree, differ = [], []
    for e, a in zip(played, credit):
        attempt = sharpo.attempt_for(e, played)
        if attempt and not e.success:
            did = {s.observation: s.action for s in attempt.steps}
            for step, value in zip(e.steps, a):
                if step.observation in did:
                    (agree if did[step.observation] == step.action else differ).append(value)
    assert len(agree) > 10 and len(differ) > 10
    assert np.mean(agree) > np.mean(differ) + 0.1


@pytest.mark.parametrize("method", [sharpo, gear])
def test_the_attempt_does_not_depend_on_the_order_of_rollouts(method):
    a, b, failed = walk(1, "ABG", 1), walk(1, "ACG", 1), walk(1, "ABD")
    assert method.attempt_for(failed, [a, b, failed]) is method.attempt_for(failed, [b, a, failed])
