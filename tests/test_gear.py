"""GEAR: worked numbers, fallbacks, segments, and the two passes against their definition."""

from dataclasses import replace

import gear
import numpy as np
import pytest
import sharpo
import torch
from conftest import random_groups, walk

import common
import grpo

UNIT = 0.5**0.5 / (0.5**0.5 + 1e-6) * 0.5**0.5  # |A| of a pair with outcomes 1 and 0
NAN = np.nan


def spell(episode, lengths):
    """Gives the episode a transcript: two tokens read, then those of the action, turn by turn."""
    end = 0
    for step, length in zip(episode.steps, lengths):
        step.tokens, end = (end + 2, end + 2 + length), end + 2 + length
    episode.token_ids = [0] * end
    return episode


def random_case(seed):
    """Ragged groups with actions of 1 to 6 tokens; poison wherever nothing may be read."""
    rng, divergences, gaps = np.random.default_rng(seed), [], []
    episodes = [spell(e, rng.integers(1, 7, len(e.steps))) for e in random_groups(seed)]
    episodes.append(common.Episode(0, []))
    for e in episodes:
        d, g = np.full((2, len(e.token_ids)), rng.choice([NAN, np.inf, 1e9]))
        own = [i for _, i in e.action_tokens]
        d[own] = rng.exponential(size=len(own)) ** 3
        g[own] = rng.choice([0.0, NAN, 1e3, -1e3, 0.7, -2.0], len(own))
        if rng.random() < 0.2:  # no attempt to learn from
            d[own] = g[own] = NAN
        divergences.append(d)
        gaps.append(g)
    return episodes, divergences, gaps


def flat(episodes):
    """GRPO's advantage at each action token, 0 elsewhere."""
    arrays = [np.zeros(len(e.token_ids)) for e in episodes]
    for e, array, advantages in zip(episodes, arrays, grpo.grpo_advantages(episodes)):
        for t, i in e.action_tokens:
            array[i] = advantages[t]
    return arrays


def pair(lengths):
    """A success and a failure, each with two turns of these lengths."""
    return [spell(walk(7, "ABG", 1), lengths), spell(walk(7, "ABC"), lengths)]


@pytest.mark.parametrize(
    "sign, gap, at_5, at_20",
    [(1, 0.5, 1.0122, 1.0490), (-1, 0.5, -0.9878, -0.9510), (-1, -3.0, -1.0453, -1.1810)],
)
def test_worked_numbers(sign, gap, at_5, at_20):
    """A spike with this gap at the second of three tokens; what follows has other gaps."""
    d = np.array([NAN, NAN, 0.1, 4.0, 0.1, NAN, NAN, 0.2])
    g = np.array([NAN, NAN, 0.0, gap, 9.0, NAN, NAN, 0.0])
    for mix, expected in ((0.05, at_5), (0.2, at_20)):
        credit = gear.gear_token_advantages(pair([3, 1]), [d, d], [g, g], mix=mix)
        exact = np.array([0, 0, sign, expected, expected, 0, 0, sign])
        assert credit[0 if sign > 0 else 1] / UNIT == pytest.approx(exact, abs=1e-4)


def test_falls_back_to_grpo_to_the_last_bit():
    for seed in range(5):
        episodes, d, g = random_case(seed)
        nothing = [np.full(len(x), NAN) for x in g]
        for rule in (
            gear.gear_token_advantages(episodes, d, g, mix=0.0),
            gear.gear_token_advantages(episodes, nothing, nothing, mix=0.8),
        ):
            assert all((a == b).all() for a, b in zip(flat(episodes), rule, strict=True))


def test_sign_bounds_and_permutation():
    for seed in range(10):
        episodes, d, g = random_case(seed)
        credit = gear.gear_token_advantages(episodes, d, g, mix=0.3)
        moved = 0
        for a, b in zip(flat(episodes), credit, strict=True):
            assert (np.sign(a) == np.sign(b)).all()
            assert (abs(b) >= 0.7 * abs(a) - 1e-12).all()
            assert (abs(b) <= 1.3 * abs(a) + 1e-12).all()
            moved += (a != b).sum()
        assert moved > 10
        order = np.random.default_rng(seed).permutation(len(episodes))
        shuffled = gear.gear_token_advantages(
            *([values[i] for i in order] for values in (episodes, d, g)), mix=0.3
        )
        for place, i in enumerate(order):
            assert shuffled[place] == pytest.approx(credit[i], abs=1e-12)


def test_without_spikes_each_token_has_its_own_weight():
    """spike=inf: the multiplier depends on the token's own gap, whatever the divergences."""
    for seed in range(5):
        episodes, d, g = random_case(seed)
        credit = gear.gear_token_advantages(episodes, d, g, mix=0.3, spike=np.inf)
        seen = {}
        for e, a, b, gap in zip(episodes, flat(episodes), credit, g):
            for _, i in e.action_tokens:
                if a[i]:
                    value = np.nan_to_num(gap[i]) * np.sign(a[i])
                    seen.setdefault(value, []).append(b[i] / a[i])
        assert len(seen) == 7  # 0, 1e3, -1e3, 0.7, -0.7, 2, -2
        weights = [seen[value] for value in sorted(seen)]
        assert all(max(w) - min(w) < 1e-9 for w in weights)
        assert all(max(w) < min(v) for w, v in zip(weights, weights[1:]))  # rising with the gap
        assert seen[0.0] == pytest.approx([1.0] * len(seen[0.0]))


def test_a_spike_at_each_turn_gives_one_weight_per_turn():
    """And then it is SHARPO, with the gap of a turn's first token as that of the turn."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        episodes = [spell(e, rng.integers(3, 7, len(e.steps))) for e in random_groups(seed)]
        g = [rng.normal(size=len(e.token_ids)) for e in episodes]
        d = [np.zeros(len(e.token_ids)) for e in episodes]
        for e, array in zip(episodes, d):
            array[[step.tokens[0] for step in e.steps]] = 1.0
        credit = gear.gear_token_advantages(episodes, d, g, mix=0.3)
        of_turns = [gap[[step.tokens[0] for step in e.steps]] for e, gap in zip(episodes, g)]
        turns = sharpo.sharpo_advantages(episodes, of_turns, mix=0.3)
        for e, a, b in zip(episodes, credit, turns):
            assert [a[i] for _, i in e.action_tokens] == [b[t] for t, _ in e.action_tokens]


def starts(lengths, divergences, spike=1.0):
    """segment_starts at the action tokens, counted among the action tokens."""
    episode = spell(walk(7, "ABCDE"[: len(lengths) + 1]), lengths)
    own = [i for _, i in episode.action_tokens]
    d = np.full(len(episode.token_ids), 1e9)
    d[own] = divergences
    return [own.index(i) for i in gear.segment_starts(episode, d, spike)[own]]


def test_segments_by_hand():
    assert starts([4], [0, 9, 0, 0]) == [0, 1, 1, 1]  # to the end of the turn
    assert starts([6], [0, 9, 0, 0, 8, 0]) == [0, 1, 1, 1, 4, 4]  # to the next spike
    assert starts([2, 3], [0, 9, 0, 0, 0]) == [0, 1, 2, 3, 4]  # the next turn is on its own
    assert starts([3, 3], [9, 0, 0, 0, 0, 0]) == [0, 0, 0, 3, 4, 5]
    assert starts([1, 1, 1], [0, 9, 0]) == [0, 1, 2]
    assert starts([4], [0, 9, 3, 0]) == [0, 1, 1, 1]  # mean 3, std 4.2: above 7.2 is a spike
    assert starts([4], [0, 9, 3, 0], spike=0.5) == [0, 1, 1, 1]  # 3 is not above 3 + 2.1
    assert starts([4], [0, 9, 6, 0], spike=0.5) == [0, 1, 1, 1]  # 6 is not above 3.75 + 2.25
    assert starts([4], [0, 9, 6, 0], spike=0.4) == [0, 1, 2, 2]  # but above 3.75 + 1.8
    assert starts([3], [0, 2, 1], spike=0.0) == [0, 1, 1]  # the mean itself is no spike
    assert starts([4], [0, 9, 0, 0], spike=np.inf) == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9, NAN])
def test_equal_divergences_are_no_spikes(value):
    for spike in (0.0, 1.0, np.inf):
        assert starts([3, 4], [value] * 7, spike) == list(range(7))
    assert starts([1], [value]) == [0]


def test_no_segment_crosses_a_turn():
    longest = 0
    for seed in range(20):
        episodes, d, _ = random_case(seed)
        for e, divergences in zip(episodes, d):
            turn = {i: t for t, i in e.action_tokens}
            for i, first in enumerate(gear.segment_starts(e, divergences, spike=0.5)):
                assert first <= i and turn.get(first) == turn.get(i)
                longest = max(longest, i - first)
                assert first == i or i in turn
    assert longest > 2


def test_the_departure_outweighs_every_other_step():
    """The probe: a failure in which hindsight dislikes the token that opens the action of step k,
    and is indifferent or content with all else, also with what follows from it."""
    for k in range(4):
        failed = spell(walk(7, "ABCDE"), [3, 1, 4, 2])
        solved = spell(walk(7, "AG", 1), [2])
        rng = np.random.default_rng(k)
        d, g = rng.uniform(0, 0.1, (2, len(failed.token_ids)))
        at = failed.steps[k].tokens[0]
        d[at], g[at] = 3.0, -3.0
        nothing = np.full(len(solved.token_ids), NAN)
        _, credit = gear.gear_token_advantages([solved, failed], [nothing, d], [nothing, g])
        sizes = [abs(credit[slice(*step.tokens)]) for step in failed.steps]
        others = np.concatenate(sizes[:k] + sizes[k + 1 :])
        assert sizes[k].min() > 1.15 * others.max()  # 1.18 against at most 1


def test_the_attempt_is_the_shortest_other_success():
    long, short, failed = walk(1, "ABCG", 1), walk(1, "AG", 1), walk(1, "AB")
    other = walk(2, "AG", 1)
    group = [long, short, failed, other]
    assert [gear.attempt_for(e, group) for e in group] == [short, long, short, None]


@pytest.fixture
def played(policy, envs):
    torch.manual_seed(2)
    return common.rollout(policy, envs, [s for s in (3, 4, 5) for _ in range(8)])


def in_longer_turns(episode):
    """The same transcript, as if the policy had also written every second observation."""
    pairs = zip(episode.steps[::2], episode.steps[1::2])
    return replace(episode, steps=[replace(a, tokens=(a.tokens[0], b.tokens[1])) for a, b in pairs])


def distributions(policy, ids, bias):
    """Softmax of the tempered, bent logits before each token, float64, from one plain pass."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0].double().numpy()
    logits = np.roll(logits, 1, 0) / policy.args.temperature
    for i, extra in bias.items():
        for token, value in extra.items():
            logits[i, token] += value
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("turns", ["one token", "long"])
def test_the_passes_are_those_of_the_definition(policy, played, turns):
    """A sum over the vocabulary, with a teacher's text that is written down by hand."""
    policy.args = common.Args(temperature=0.7, micro_batch=5)
    episodes = played[:16] if turns == "one token" else [in_longer_turns(e) for e in played[:16]]
    north, never = policy.encode("north key")
    for e in episodes:
        for step in e.steps[::3]:
            step.info = {**step.info, "logit_bias": {north: 1.5, never: -np.inf}}
    before = policy.meter["policy_tokens"]
    d, g = gear.divergences_and_gaps(policy, episodes)
    taught = checked = 0
    for e, kl, gap in zip(episodes, d, g, strict=True):
        attempt, inside = gear.attempt_for(e, episodes), {i for _, i in e.action_tokens}
        if attempt is None or not e.steps:
            assert len(kl) == len(gap) == len(e.token_ids)
            assert np.isnan(kl).all() and np.isnan(gap).all()
            continue
        story = " ".join(f"{s.observation} > {s.action}" for s in attempt.steps)
        opening = policy.encode(f"reference {story} end")
        shift = len(opening)
        bias = {s.tokens[0]: s.info["logit_bias"] or {} for s in e.steps}
        student = distributions(policy, e.token_ids, bias)
        bias = {shift + i: extra for i, extra in bias.items()}
        teacher = distributions(policy, opening + e.token_ids, bias)[shift:]
        for i, token in enumerate(e.token_ids):
            if i not in inside:
                assert np.isnan(kl[i]) and np.isnan(gap[i])
                continue
            p, q = student[i], teacher[i]
            some = p > 0
            exact = (p[some] * np.log(p[some] / q[some])).sum()
            assert kl[i] == pytest.approx(exact, abs=1e-3) and kl[i] > -1e-6
            assert gap[i] == pytest.approx(np.log(q[token] / p[token]), abs=1e-3)
        taught, checked = taught + 1, checked + len(inside)
    assert taught < len(episodes) and checked > 100
    assert policy.meter["extra_passes"] == 2 * taught
    assert policy.meter["policy_tokens"] - before == 2 * checked
    for whole, parts in zip((d, g), gear.divergences_and_gaps(policy, episodes, chunk=7)):
        for a, b in zip(whole, parts):
            assert np.allclose(a, b, atol=1e-5, equal_nan=True)


def test_no_room_for_the_attempt(policy, played):
    policy.core.config.max_position_embeddings = 10
    for arrays in gear.divergences_and_gaps(policy, played):
        assert all(np.isnan(a).all() for a in arrays)
    assert policy.meter["extra_passes"] == 0


def test_one_token_actions_make_it_sharpo(policy, played):
    """No segment is longer than its turn, so in the toy tasks the two rules agree."""
    credit = gear.gear_token_advantages(played, *gear.divergences_and_gaps(policy, played), mix=0.8)
    turns = sharpo.sharpo_advantages(played, sharpo.hindsight_gaps(policy, played), mix=0.8)
    for e, a, b in zip(played, credit, turns):
        assert a[[step.tokens[0] for step in e.steps]] == pytest.approx(b, abs=1e-4)


def test_the_model_itself_sees_the_departure(policy, played):
    """The probe with the toy LM as teacher: a success, a failed copy of it, and failed copies that
    differ in one action each. The penalty grows at that action, and hardly anywhere else."""
    actions = sorted({e.token_ids[i] for e in played for _, i in e.action_tokens})
    there, elsewhere = [], []
    for solved in [e for e in played if e.success][:3]:
        own = [step.tokens[0] for step in solved.steps]
        steps = [replace(step, reward=0.0) for step in solved.steps]
        same = replace(solved, success=False, steps=steps)
        copies = [replace(same, token_ids=list(solved.token_ids)) for _ in own]
        for copy, at in zip(copies, own):
            copy.token_ids[at] = actions[actions.index(copy.token_ids[at]) - 1]
        group = [solved, same, *copies]
        arrays = gear.divergences_and_gaps(policy, group)
        _, before, *after = gear.gear_token_advantages(group, *arrays, mix=0.8)
        growth = (abs(np.array(after)) - abs(before))[:, own] / abs(before[own]).mean()
        there.extend(growth.diagonal())
        elsewhere.extend(growth[~np.eye(len(own), dtype=bool)])
    assert np.mean(there) > 0.1
    assert np.mean(there) > 10 * np.mean(np.abs(elsewhere))
