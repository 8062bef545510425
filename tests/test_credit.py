"""The credit rules: worked numbers of one small graph, and properties on random ragged groups."""

import dars
import gigpo
import graphgpo
import numpy as np
import pytest
import spader
from conftest import random_groups, walk

import common
import grpo

# One task, four rollouts, two successes of reward 10: methods.md 12.1.
FOUR = [walk(7, "ABCG", 10), walk(7, "ABDBCG", 10), walk(7, "ADEE"), walk(7, "ABDE")]
RULES = [
    grpo.grpo_advantages,
    gigpo.gigpo_advantages,
    lambda episodes: gigpo.gigpo_advantages(episodes, anchor="observation"),
    graphgpo.graphgpo_advantages,
    lambda episodes: graphgpo.graphgpo_advantages(episodes, anchor="observation"),
]


def test_grpo_worked_numbers():
    assert [a[0] for a in grpo.grpo_advantages(FOUR)] == pytest.approx(
        [0.8660, 0.8660, -0.8660, -0.8660], abs=1e-4
    )
    assert [a[0] for a in grpo.grpo_advantages(FOUR, normalize_std=False)] == [5, 5, -5, -5]


def test_gigpo_worked_numbers():
    within = [
        [0.9523, 0.5646, 0],
        [0.7752, 0.3640, 1.1547, 0.5646, 0],
        [-0.8638, -0.5774, 0],
        [-0.8638, -1.4933, -0.5774],
    ]
    for advantages, step, outcome in zip(gigpo.gigpo_advantages(FOUR), within, (1, 1, -1, -1)):
        assert advantages == pytest.approx(np.array(step) + outcome * 0.8660, abs=1e-4)
    returns = [gigpo.step_returns(e, 0.95) for e in FOUR[:2]]
    assert returns[0] == pytest.approx([9.0250, 9.5, 10])
    assert returns[1] == pytest.approx([8.1451, 8.5738, 9.0250, 9.5, 10], abs=1e-4)


def test_graphgpo_worked_numbers():
    distances = graphgpo.graph_distances(FOUR)[7]
    assert distances == {"success": 0, "C": 1, "B": 2, "A": 3, "D": 3, "E": 4}
    within = [
        [0.5, 0.8660, 0],
        [0.5, -0.8660, 1.1547, 0.8660, 0],
        [-1.5, -0.5773, 0],
        [0.5, -0.8660, -0.5773],
    ]
    for advantages, step, outcome in zip(
        graphgpo.graphgpo_advantages(FOUR), within, (1, 1, -1, -1)
    ):
        assert advantages == pytest.approx(np.array(step) + outcome * 0.8660, abs=1e-4)


def test_graphgpo_progress_statistic():
    """1 of 6 steps in failed rollouts makes progress, 1 of 8 in successful ones does not."""
    d = graphgpo.graph_distances(FOUR)[7]
    progress = [
        [d[b] < d[a] for a, b in zip(nodes, nodes[1:])]
        for nodes in (graphgpo.path(e, "state") for e in FOUR)
    ]
    assert sum(progress[2] + progress[3]) == 1 and len(progress[2] + progress[3]) == 6
    assert sum(progress[0] + progress[1]) == 7 and len(progress[0] + progress[1]) == 8


def test_graphgpo_without_success_is_zero():
    for advantages in graphgpo.graphgpo_advantages([walk(1, "ABC"), walk(1, "ACB"), walk(1, "BA")]):
        assert not advantages.any()


def test_graph_distances_against_brute_force():
    """Shortest paths by matrix powers of the observed edges."""
    episodes = random_groups(3)
    for task, distances in graphgpo.graph_distances(episodes).items():
        nodes = sorted(distances)
        reach = np.eye(len(nodes), dtype=bool)
        edge = np.zeros_like(reach)
        for e in episodes:
            if e.task == task:
                path = graphgpo.path(e, "state")
                for a, b in zip(path, path[1:]):
                    edge[nodes.index(a), nodes.index(b)] = True
        goal, exact = nodes.index("success"), {}
        for length in range(len(nodes) + 1):
            for i in np.flatnonzero(reach[:, goal]):
                exact.setdefault(nodes[i], length)
            reach = edge @ reach
        far = 1 + max(exact.values())
        assert distances == {node: exact.get(node, far) for node in nodes}


def test_graph_credit_fades_with_distance():
    """The absolute 1e-6 damps credit far from the goal: methods.md 3."""
    for far, size in [(4, 0.706), (6, 0.611), (7, 0.275), (8, 0.042), (10, 0.0)]:
        rewards = [10 * 0.1**far, 10 * 0.1 ** (far + 1)]
        assert common.normalize_within(rewards, "ss")[0] == pytest.approx(size, abs=1e-3)


def test_a_lone_anchor_state_gives_zero():
    """s0 -> s1 (R=1) and s0 -> s2 (R=0): the visited-once states add nothing."""
    pair = [walk(1, "01x", 1), walk(1, "02y", 0)]
    mean = gigpo.gigpo_advantages(pair, gamma=0.9, normalize_std=False)
    assert mean[0] == pytest.approx([0.95, 0.5]) and mean[1] == pytest.approx([-0.95, -0.5])


def test_step_rewards_matter_to_steps_only():
    """Same outcome, other step rewards: GRPO is the same, GiGPO is not."""
    one, other = walk(1, "ABC", 1), walk(1, "ABC", 1)
    other.steps[0].reward, other.steps[1].reward = 1.0, 0.0
    group = [one, other, walk(1, "ABC")]
    first, second, _ = grpo.grpo_advantages(group)
    assert (first == second).all()
    first, second, _ = gigpo.gigpo_advantages(group)
    assert (first != second).any()


def test_an_invalid_step_costs_the_whole_rollout_the_same():
    group = [walk(1, "ABC", 1), walk(1, "ABC", 1)]
    group[0].steps[1].reward -= 0.1
    assert group[0].reward == pytest.approx(0.9)
    assert len(set(grpo.grpo_advantages(group)[0])) == 1
    returns = gigpo.step_returns(group[0], 1.0), gigpo.step_returns(group[1], 1.0)
    assert returns[0] - returns[1] == pytest.approx([-0.1, -0.1])


def test_long_rollouts_do_not_weigh_more():
    """R=1 in 2 steps, R=0 in 8: the baseline is 0.5, not 0.2."""
    short, long = grpo.grpo_advantages([walk(1, "ABC", 1), walk(1, "A" * 9)], normalize_std=False)
    assert (short == 0.5).all() and (long == -0.5).all() and len(long) == 8


def test_state_and_observation_anchors_differ_where_text_hides_something():
    """Same text with and without the key: the state key tells them apart, the text does not."""
    have, lack = walk(1, "AB", 1), walk(1, "CD")
    have.steps[0].observation = lack.steps[0].observation = "in the hall"
    by_state = gigpo.gigpo_advantages([have, lack])
    by_text = gigpo.gigpo_advantages([have, lack], anchor="observation")
    assert by_state[0] == pytest.approx(0.7071, abs=1e-4)
    assert by_text[0] == pytest.approx(2 * 0.7071, abs=1e-4)


def test_weight_zero_is_grpo():
    for seed in range(5):
        episodes = random_groups(seed)
        plain = grpo.grpo_advantages(episodes)
        for rule in (
            gigpo.gigpo_advantages(episodes, step_weight=0.0),
            graphgpo.graphgpo_advantages(episodes, graph_weight=0.0),
        ):
            assert all((a == b).all() for a, b in zip(plain, rule))


@pytest.mark.parametrize("rule", RULES)
def test_permutation(rule):
    """Groups are formed by task: shuffling the list shuffles the result and changes nothing."""
    for seed in range(10):
        episodes = random_groups(seed)
        order = np.random.default_rng(seed).permutation(len(episodes))
        plain, shuffled = rule(episodes), rule([episodes[i] for i in order])
        for place, i in enumerate(order):
            assert shuffled[place] == pytest.approx(plain[i], abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_groups_do_not_touch_each_other(rule):
    """Another group in the batch, dead, rich or poor, changes no advantage of this one."""
    for seed in range(5):
        group = [e for e in random_groups(seed) if e.task == 0]
        others = [walk("other", "ABC", 100), walk("other", "ABC", 100), walk("more", "AB", -5)]
        for alone, together in zip(rule(group), rule(others + group)[3:]):
            assert (alone == together).all()


@pytest.mark.parametrize("rule", RULES)
def test_shapes_finite_and_unplayed(rule):
    """One finite number per step; an episode without steps is nobody's peer and gets none."""
    for seed in range(5):
        episodes = random_groups(seed)
        plain = rule(episodes)
        assert all(len(a) == len(e.steps) and np.isfinite(a).all() for a, e in zip(plain, episodes))
        assert all(a.dtype == np.float64 for a in plain)
        with_empty = rule([common.Episode(0, []), *episodes])
        assert len(with_empty[0]) == 0
        assert all((a == b).all() for a, b in zip(plain, with_empty[1:]))
    assert rule([]) == []


@pytest.mark.parametrize("rule", RULES)
def test_equal_outcomes_and_groups_of_one(rule):
    """Equal rollouts give exactly zero; so does a rollout without peers."""
    for group in ([walk(1, "ABC", 0.1)] * 3, [walk(1, "ABCD", 5)]):
        assert all((a == 0).all() for a in rule(group))


@pytest.mark.parametrize("rule", RULES)
def test_two_tasks_with_the_same_text_are_two_groups(rule):
    assert all((a == 0).all() for a in rule([walk(1, "AB", 1)] * 2 + [walk(2, "AB", 0)] * 2))


def test_returns_of_long_rollouts():
    """By recursion, not by powers of gamma, which would under- or overflow."""
    ones = np.ones(4096)
    long = common.Episode(1, [common.Step("o", "a", 1.0) for _ in ones])
    for returns in (gigpo.step_returns(long, 0.9), dars.discounted(ones, 0.9),
                    spader.discounted(ones, 0.9)):  # fmt: skip
        assert np.isfinite(returns).all() and returns[[0, -1]] == pytest.approx([10, 1])
