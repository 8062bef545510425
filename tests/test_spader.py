"""SPADER: the worked numbers of methods.md 6, what counts as a find, and who is compared."""

import statistics
import subprocess
import sys

import numpy as np
import pytest
import spader
from conftest import HOUSE, random_groups

import common
import grpo

GOLD = ("e1", "e2", "e3", "e4")


def search(finds, f1=0.0, task=7, gold=GOLD):
    """A look for each of `finds` (None: a move instead), then the answer."""
    infos = [{} if found is None else {"found": found} for found in finds]
    steps = [common.Step("o", "look" if info else "east", info=info) for info in infos]
    steps.append(common.Step("o", "answer", reward=f1))
    return common.Episode(task, steps, f1 == 1.0, initial_info={"gold": gold})


THREE = [
    search([("e1",), ("e2",), ()], 0.6),
    search([("e1",), (), ("e3",)], 0.4),
    search([("e1", "e3")], 0.5),
]


def random_finds(seed):
    """Ragged groups that look or move, with gold and other finds; one was never played."""
    rng, episodes = np.random.default_rng(seed), random_groups(seed)
    for e in episodes:
        e.initial_info["gold"] = GOLD
        for step in e.steps:
            if rng.random() < 0.7:
                step.info["found"] = rng.choice([*GOLD, "stray"], rng.integers(4)).tolist()
    return [*episodes[:2], common.Episode(episodes[0].task, []), *episodes[2:]]


def test_worked_numbers():
    rewards = spader.spader_rewards(THREE)
    for found, expected in zip(
        rewards, [[0.3853, 1.25, 0, 0.6], [0.3853, 0, 0.6179, 0.4], [1.0032, 0.5]]
    ):
        assert found == pytest.approx(expected, abs=1e-4)
    for reward, expected in zip(
        rewards, [[1.9477, 1.7360, 0.54, 0.6], [1.1774, 0.8801, 0.9779, 0.4], [1.4532, 0.5]]
    ):
        assert spader.discounted(reward, 0.9) == pytest.approx(expected, abs=1e-4)
    for found, expected in zip(
        spader.spader_advantages(THREE),
        [[1.3230, 1.3490, 0.0851, 1.0690], [-1.0942, -0.3068, 1.1800, 0.2673], [-0.2288, -1.0422]],
    ):
        assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("finders, worth", [(1, 5.0), (2, 2.47), (3, 1.54), (16, 1.0)])
def test_worth_of_a_find(finders, worth):
    group = [search([("e1",) if i < finders else ()]) for i in range(16)]
    rewards = spader.spader_rewards(group)
    assert rewards[0][0] * len(GOLD) == pytest.approx(worth, abs=0.005)
    assert spader.spader_rewards(group, beta=0.0)[0][0] * len(GOLD) == 1.0
    assert spader.spader_rewards(group, rarity=0.0)[0][0] * len(GOLD) == 5.0
    only_alone = spader.spader_rewards(group, rarity=np.inf)[0][0] * len(GOLD)
    assert only_alone == (5.0 if finders == 1 else 1.0)


def test_what_one_found_outweighs_what_all_found():
    """The probe: as many finds and the same F1, but one rollout brings home what no other does."""
    common_first, rare_first = [("e1",), ("e3",)], [("e2",), ("e1",)]
    group = [search(rare_first, 0.5), *(search(common_first, 0.5) for _ in range(3))]
    rare, *others = spader.spader_advantages(group)
    assert rare[0] > 1.7 and all(other[0] < 0 for other in others)
    assert rare[2] == 0.0 and not any(a.any() for a in grpo.grpo_advantages(group))
    for credit in spader.spader_advantages(group, beta=0.0):  # no rarity, no difference
        assert not credit.any()


def test_a_find_counts_once_and_only_if_gold():
    finds = [("e1", "e1"), ("e1",), ("stray",), None, ("e2", "e1")]
    rewards = spader.spader_rewards([search(finds)])
    assert (rewards[0] * len(GOLD)).tolist() == [5, 0, 0, 0, 5, 0]
    again = [search([("e1",), ("e1",)]), search([("e1",)])]  # finders are rollouts, not finds
    assert spader.spader_rewards(again)[1][0] * 4 == pytest.approx(1 + 4 / np.e)


def test_order_and_kind_of_the_finds_do_not_matter():
    """Not in the last bit either: a new process has other string hashes, and must go on exactly."""
    gold = tuple("abcdefghij")
    peers = [search([gold[:k]], gold=gold) for k in range(10)]
    rewards = [
        spader.spader_rewards([search([found], gold=gold), *peers])[0].tolist()
        for found in (gold, list(reversed(gold)), frozenset(gold))
    ]
    assert rewards[0] == rewards[1] == rewards[2]
    worth = [1 + 4 * np.exp(k - 9) for k in range(10)]  # entity k: found by 9 - k of the peers
    assert rewards[0] == pytest.approx([sum(worth) / 10, 0])
    assert spader.spader_rewards([search([gold], 0.5, gold=())])[0].tolist() == [0, 0.5]


def test_query_cost_is_for_those_who_ask():
    free, paid = (
        spader.spader_rewards([search([("e1",), (), None], 0.5)], query_cost=c)[0] for c in (0, 0.1)
    )
    assert free - paid == pytest.approx([0.025, 0.025, 0, 0])


def test_rewards_of_the_environment_stay():
    for episodes in (random_groups(1), random_finds(1)):
        for e in episodes:
            e.initial_info["gold"] = GOLD
        for e, rewards in zip(episodes, spader.spader_rewards(episodes, alpha=0.0, beta=0.0)):
            assert rewards.tolist() == [step.reward for step in e.steps]


def test_rollouts_that_are_over():
    """known_faults.md: +1.0 for the one that lingers, though both got 1; or alive only, and 0."""
    rewards = [[1.0], [0.0, 1.0]]
    zeros = spader.peer_advantages(rewards, "aa", gamma=1.0)
    assert zeros[0].tolist() == [0.0] and zeros[1] == pytest.approx([0.0, 1.0], abs=1e-5)
    alive = spader.peer_advantages(rewards, "aa", gamma=1.0, alive_only=True)
    assert [a.tolist() for a in alive] == [[0.0], [0.0, 0.0]]
    group = [search([], 1.0), search([()], 1.0)]  # and on episodes
    assert spader.spader_advantages(group, gamma=1.0)[1] == pytest.approx([0.0, 1.0], abs=1e-5)
    assert not spader.spader_advantages(group, gamma=1.0, alive_only=True)[1].any()
    for size in (0.1, 10.0):  # alone at the end: the size of the return does not matter
        credit = spader.peer_advantages([[0.0, 0.0, size], *[[0.0]] * 7], "a" * 8)
        assert credit[0][2] == pytest.approx(7**0.5, abs=2e-3)


def test_exactly_zero_where_nobody_differs():
    """np.mean of three times 0.1 is not 0.1, and 1e-17 over the root of 1e-6 is not 0."""
    for alive_only in (False, True):
        for credit in spader.peer_advantages([[0.1, 0.7]] * 3, "aaa", 0.9, alive_only):
            assert not credit.any()


@pytest.mark.parametrize("alive_only", [False, True])
def test_advantages_are_those_of_the_definition(alive_only):
    """Each step by itself, on ragged groups in any order, one of them with an empty rollout."""
    for seed in range(10):
        episodes = random_finds(seed)
        rewards, tasks = spader.spader_rewards(episodes), [e.task for e in episodes]
        credit = spader.peer_advantages(rewards, tasks, 0.8, alive_only)
        assert [len(a) for a in credit] == [len(e.steps) for e in episodes]
        for task, own, a in zip(tasks, rewards, credit):
            peers = [r for r, other in zip(rewards, tasks) if other == task and len(r)]
            for t in range(len(own)):
                returns = [
                    sum(0.8**k * reward for k, reward in enumerate(r[t:]))
                    for r in peers
                    if t < len(r) or not alive_only
                ]
                mine = sum(0.8**k * reward for k, reward in enumerate(own[t:]))
                spread = (statistics.pvariance(returns) + 1e-6) ** 0.5
                assert a[t] == pytest.approx((mine - statistics.fmean(returns)) / spread, abs=1e-9)
                assert abs(a[t]) <= (len(returns) - 1) ** 0.5


@pytest.mark.parametrize("alive_only", [False, True])
def test_order_and_other_tasks_do_not_matter(alive_only):
    for seed in range(10):
        episodes = random_finds(seed)
        credit = spader.spader_advantages(episodes, alive_only=alive_only)
        order = np.random.default_rng(seed).permutation(len(episodes))
        shuffled = spader.spader_advantages([episodes[i] for i in order], alive_only=alive_only)
        for place, i in enumerate(order):
            assert shuffled[place] == pytest.approx(credit[i], abs=1e-12)
        for task in {e.task for e in episodes}:
            own = [i for i, e in enumerate(episodes) if e.task == task]
            alone = spader.spader_advantages([episodes[i] for i in own], alive_only=alive_only)
            assert all((credit[i] == a).all() for i, a in zip(own, alone))


def test_a_rollout_that_was_not_played_is_no_peer():
    empty = common.Episode(7, [])  # no steps, and no initial_info either
    with_it = spader.spader_advantages([THREE[0], empty, *THREE[1:]])
    assert len(with_it.pop(1)) == 0
    assert all((a == b).all() for a, b in zip(with_it, spader.spader_advantages(THREE)))
    assert [len(a) for a in spader.spader_advantages([empty, empty])] == [0, 0]
    assert spader.spader_advantages([]) == []


def test_what_is_left_without_finds_is_grpo_times_a_constant():
    """Equal lengths, a reward at the end, gamma 1; and step 0 whatever the lengths and rewards."""
    off = {"alpha": 0.0, "beta": 0.0, "gamma": 1.0}
    group = [search([("e1",), ("e2",)], f1) for f1 in (0.0, 0.3, 1.0, 1.0)]
    for alive_only in (False, True):
        credit = spader.spader_advantages(group, alive_only=alive_only, **off)
        for a, plain in zip(credit, grpo.grpo_advantages(group)):
            assert a == pytest.approx(plain * (4 / 3) ** 0.5, abs=1e-4)
    episodes = random_finds(3)
    sizes = [sum(o.task == e.task and bool(o.steps) for o in episodes) for e in episodes]
    credit, plain = spader.spader_advantages(episodes, **off), grpo.grpo_advantages(episodes)
    for n, a, b in zip(sizes, credit, plain):
        if n > 1 and len(a):
            assert a[0] == pytest.approx(b[0] * (n / (n - 1)) ** 0.5, abs=1e-3)


def test_an_environment_without_gold():
    """One clear line, exit code 2, no folder of a run."""
    done = subprocess.run(
        [sys.executable, "methods/spader.py", "--env", "keydoor"],
        cwd=HOUSE, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "'keydoor'" in done.stderr and "'gold'" in done.stderr
    assert not list(HOUSE.glob("runs/spader-keydoor-*"))
