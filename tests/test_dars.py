"""DARS: the worked example of methods.md 9, the price of the clip, and what the credit is for."""

import itertools
import math

import dars
import gigpo
import numpy as np
import pytest
from conftest import random_groups, walk

import common
import grpo

DIAMOND = {"c1": (), "c2": ("c1",), "c3": ("c1",), "c4": ()}
STAR = {"a": (), "b": ("a",), "c": ("a",), "d": ("a",)}
LINE = {"A": (), "B": ("A",), "C": ("B",), "D": ("C",)}
PLAY = [set(), {"c1"}, {"c1", "c2"}, {"c1", "c2", "c4"}, {"c2", "c4"}, {"c2", "c3", "c4"}]
PLAY += [{"c1", "c2", "c3", "c4"}]


def rewards_of(facts_by_step, prerequisites=DIAMOND, initial=(), **options):
    happened = dars.events(initial, facts_by_step, prerequisites)
    return dars.dars_rewards(happened, prerequisites, initial_facts=initial, **options)


def random_facts(seed, nodes, length=30):
    rng = np.random.default_rng(seed)
    return [{n for n in nodes if rng.random() < 0.6} for _ in range(length)]


def add_facts(episodes, seed, nodes="ABCD"):
    """Any predicates after any step, and at the start."""
    rng = np.random.default_rng(seed)
    for e in episodes:
        draws = random_facts(rng.integers(1 << 30), nodes, len(e.steps) + 1)
        e.initial_info["facts"] = draws[0]
        for step, facts in zip(e.steps, draws[1:]):
            step.info["facts"] = facts
    return episodes


def test_worked_example():
    """The repository's own: verify c1, c2, c4, break c1, verify c3, repair and verify c1."""
    rewards = rewards_of(PLAY, kappa=1.0)
    assert rewards == pytest.approx([0, 0.25, 0.25, 0.25, -0.408, 0.092, 0.566], abs=1e-3)
    assert np.cumsum(rewards) == pytest.approx([0, 0.25, 0.5, 0.75, 0.342, 0.434, 1], abs=1e-3)
    clipped = [0, 0.25, 0.25, 0.25, -0.3, 0.092, 0.3]
    assert rewards_of(PLAY) == pytest.approx(clipped, abs=1e-3)


def test_worked_events():
    happened = dars.events((), PLAY, DIAMOND)
    assert happened[:2] == [(set(), set(), set()), ({"c1"}, set(), set())]
    assert happened[4:] == [(set(), {"c1"}, set()), ({"c3"}, set(), set()), ({"c1"}, set(), {"c1"})]
    assert all(isinstance(kind, frozenset) for step in happened for kind in step)


def test_events_of_what_held_at_the_start():
    """True at the start: no event until it breaks, and true again it is recovered, not new."""
    facts = [{"A"}, set(), {"A"}, {"A", "stray"}]
    verified, errors, recovered = zip(*dars.events({"A", "stray"}, facts, LINE))
    assert verified == (set(), set(), {"A"}, set())
    assert errors == (set(), {"A"}, set(), set())
    assert recovered == (set(), set(), {"A"}, set())
    assert rewards_of(facts, LINE, {"A"}) == pytest.approx([0, -0.25, 0.25, 0])


def test_events_can_be_undone():
    """Replaying the events on a set gives back the facts."""
    for seed in range(20):
        initial, *facts = random_facts(seed, "ABCD")
        held, once = set(initial), set(initial)
        for now, (verified, errors, recovered) in zip(facts, dars.events(initial, facts, LINE)):
            assert not verified & held and errors <= held and recovered == verified & once
            held = (held - errors) | verified
            assert held == now
            once |= now


def loop(kappa):
    """All of STAR holds; break its root, lift the break, verify the root again: the three rewards.

    Three steps need an annotator that reports the repair before the verification.
    """
    steps = [(set(STAR), (), ()), ((), "a", ()), ((), (), "a"), ("a", (), ())]
    return dars.dars_rewards(steps, STAR, kappa=kappa)[1:]


def test_a_closed_loop_sums_to_zero_without_the_clip():
    assert loop(math.inf) == pytest.approx([-0.724, 0.474, 0.25], abs=1e-3)
    assert loop(math.inf).sum() == pytest.approx(0, abs=1e-12)


def test_the_clip_leaks_a_quarter_for_each_loop():
    """Known weakness, kept: Phi is back where it was, and +0.25 stays."""
    assert loop(0.3) == pytest.approx([-0.3, 0.3, 0.25])
    at_once = [(set(STAR), (), ()), ((), "a", ()), ("a", (), "a")]
    assert dars.dars_rewards(at_once, STAR)[1:].sum() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("attenuation", ["exp", "none", "hard"])
def test_any_way_back_to_the_same_state_sums_to_zero(attenuation):
    """Random facts, then all true: the sum tells the end from the start, not the way."""
    for seed in range(20):
        initial, *facts = random_facts(seed, "ABCD")
        rewards = rewards_of(
            [*facts, set("ABCD")], LINE, initial, kappa=math.inf, attenuation=attenuation
        )
        assert rewards.sum() == pytest.approx(1 - len(initial) / 4, abs=1e-12)


def test_without_attenuation_the_potential_counts_facts():
    for seed in range(5):
        facts = random_facts(seed, "ABCD")
        for prerequisites, options in [
            (LINE, {"attenuation": "none"}),
            (LINE, {"lam": 0.0}),
            (dars.arrange(LINE, "none"), {}),
        ]:
            rewards = rewards_of(facts, prerequisites, kappa=math.inf, **options)
            assert np.cumsum(rewards) == pytest.approx([len(now) / 4 for now in facts])


def test_attenuations_are_ordered():
    """What rests on a break is worth nothing (hard) <= something (exp) <= all (none)."""
    different = 0
    for seed in range(10):
        facts = random_facts(seed, "ABCD")
        hard, strong, weak, none = (
            np.cumsum(rewards_of(facts, LINE, kappa=math.inf, attenuation=name, lam=lam))
            for name, lam in (("hard", 1), ("exp", 2.0), ("exp", 0.5), ("none", 1))
        )
        assert (hard <= strong + 1e-12).all() and (strong <= weak + 1e-12).all()
        assert (weak <= none + 1e-12).all() and (hard >= -1e-12).all()
        different += (hard < strong - 1e-3).any() and (weak < none - 1e-3).any()
    assert different == 10


def test_the_nearest_break_counts():
    """D stays: A broken is three steps up, then C broken is one step up."""
    start = {"A", "B", "C", "D"}
    far = rewards_of([start, start - {"A"}], LINE, kappa=math.inf)[1]
    assert 1 + far == pytest.approx((math.exp(-1) + math.exp(-2) + math.exp(-3)) / 4)
    near = rewards_of([start, start - {"A"}, {"D"}], LINE, kappa=math.inf).sum()
    assert near == pytest.approx(math.exp(-1) / 4)


def test_ancestors_against_brute_force():
    """Nearest distances on random graphs by powers of the matrix of prerequisites."""
    for seed in range(10):
        edge = np.triu(np.random.default_rng(seed).random((7, 7)) < 0.4, 1)  # i rests on later ones
        graph = {i: tuple(np.flatnonzero(edge[i]).tolist()) for i in range(7)}
        for node in graph:
            reach, exact = np.eye(7, dtype=bool)[node], {}
            for distance in range(1, 8):
                reach = reach @ edge
                for ancestor in np.flatnonzero(reach):
                    exact.setdefault(int(ancestor), distance)
            assert dars.ancestors(node, graph) == exact


def test_graph_options():
    """Breaking c2 costs its own share; in a chain c3 and c4 rest on it and are dimmed too."""
    start = set(DIAMOND)
    for graph, potential in [
        ("dag", 3 / 4),
        ("none", 3 / 4),
        ("chain", (1 + math.exp(-1) + math.exp(-2)) / 4),
    ]:
        needs = dars.arrange(DIAMOND, graph)
        rewards = rewards_of([start, start - {"c2"}], needs, kappa=math.inf)
        assert rewards.sum() == pytest.approx(potential)
        assert list(needs) == list(DIAMOND)


def test_options_reach_the_credit():
    """graph="chain" is the chain given as prerequisites; all options differ, but for two "none"."""
    episodes = add_facts(random_groups(4), 4, list(DIAMOND))
    credit = {}
    for name, value in [
        ("graph", "dag"),
        ("graph", "chain"),
        ("graph", "none"),
        ("attenuation", "none"),
        ("attenuation", "hard"),
        ("lam", 0.5),
        ("kappa", 0.1),
        ("combine", "add"),
        ("gamma", 0.5),
        ("anchor", "observation"),
    ]:
        rows = dars.dars_advantages(episodes, DIAMOND, **{name: value})
        credit[name, value] = np.concatenate(rows).round(9).tolist()
    chained = dars.dars_advantages(episodes, dars.arrange(DIAMOND, "chain"))
    assert credit["graph", "chain"] == np.concatenate(chained).round(9).tolist()
    assert credit.pop(("graph", "none")) == credit["attenuation", "none"]
    assert (
        credit.pop(("anchor", "observation")) == credit["graph", "dag"]
    )  # here it names the state
    assert len({tuple(row) for row in credit.values()}) == len(credit) == 8


def test_rewards_are_bounded_and_scale_with_rho():
    for seed in range(10):
        facts = random_facts(seed, "ABCD")
        rewards = rewards_of(facts, LINE, kappa=0.2)
        assert np.abs(rewards).max() == 0.2 and len(rewards) == len(facts)
        assert rewards_of(facts, LINE, kappa=0.2, rho=3.0) == pytest.approx(3 * rewards)
    assert len(dars.dars_rewards([], LINE)) == 0
    assert dars.dars_rewards([((), (), ())], {}).tolist() == [0]


def test_establishing_pays_and_breaking_costs():
    """A predicate for the first time is never punished, the first break never paid."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        first, broken, facts, signs = set(), False, [set()], [0]
        for _ in range(30):
            node = str(rng.choice(list("ABCD")))
            new, breaks = node not in first, node in facts[-1]
            signs.append(1 if new else -1 if breaks and not broken else 0)
            first, broken = first | {node}, broken or breaks
            facts.append(facts[-1] ^ {node})
        signed = rewards_of(facts, LINE) * signs
        assert (signed >= 0).all() and (signed > 0.01).sum() >= 2 and -1 in signs


def test_a_second_break_nearer_by_can_raise_the_potential():
    """Known weakness, kept: D is three steps below the broken A, and then one below C."""
    rewards = rewards_of([set("BCD"), set("BD")], LINE, set("ABCD"))
    gain = (math.exp(-1) - math.exp(-2) - math.exp(-3)) / 4
    assert rewards[1] == pytest.approx(gain) and gain == pytest.approx(0.0457, abs=1e-4)


def test_redistribution_keeps_the_discounted_return():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        environment, shaped = rng.normal(size=(2, rng.integers(1, 40)))
        rewards = dars.combine_rewards(environment, shaped, "redistribute", 0.95)
        discounts = 0.95 ** np.arange(len(rewards))
        assert discounts @ rewards == pytest.approx(discounts @ environment)
        assert (rewards[:-1] >= 0).all()
        assert (rewards[:-1] > 0).tolist() == (shaped[:-1] > 0).tolist()
    assert len(dars.combine_rewards(np.array([]), np.array([]), "redistribute")) == 0


def test_redistribution_leaves_the_first_step_to_the_environment():
    """From a start that is never visited again, the returns and so the credit are GiGPO's."""
    rng = np.random.default_rng(0)
    paths = ["S" + "".join(rng.choice(list("ABC"), 5)) for _ in range(8)]
    episodes = add_facts([walk(1, path, k % 2) for k, path in enumerate(paths)], 0)
    shaped = dars.dars_advantages(episodes, LINE, combine="redistribute")
    plain = gigpo.gigpo_advantages(episodes)
    assert [a[0] for a in shaped] == pytest.approx([a[0] for a in plain], abs=1e-9)
    assert any(abs(a - b).max() > 0.1 for a, b in zip(shaped, plain))


def test_add_is_gigpo_on_the_sum():
    """GiGPO on an environment that pays both rewards itself, in the step term."""
    episodes = add_facts(random_groups(2), 2)
    added = dars.dars_advantages(episodes, LINE, combine="add")
    outcome = grpo.grpo_advantages(episodes)
    for e in episodes:
        initial, facts = e.initial_info["facts"], [step.info["facts"] for step in e.steps]
        for step, reward in zip(e.steps, rewards_of(facts, LINE, initial)):
            step.reward += reward
    both, paid = gigpo.gigpo_advantages(episodes), grpo.grpo_advantages(episodes)
    for a, b, i, j in zip(added, both, outcome, paid):
        assert a - i == pytest.approx(b - j, abs=1e-9)


def test_without_facts_it_is_gigpo():
    """Facts missing, at all steps or at one, or no graph: GiGPO to the last bit."""
    for seed in range(5):
        episodes = random_groups(seed)
        plain = gigpo.gigpo_advantages(episodes)
        assert all((a == b).all() for a, b in zip(plain, dars.dars_advantages(episodes, LINE)))
        add_facts(episodes, seed)
        assert all((a == b).all() for a, b in zip(plain, dars.dars_advantages(episodes, {})))
        assert any((a != b).any() for a, b in zip(plain, dars.dars_advantages(episodes, LINE)))
        for e in episodes:
            del e.steps[-1].info["facts"]
        assert all((a == b).all() for a, b in zip(plain, dars.dars_advantages(episodes, LINE)))


def test_without_weight_or_signal_it_is_grpo():
    for seed in range(5):
        episodes = add_facts(random_groups(seed), seed)
        plain = grpo.grpo_advantages(episodes)
        unweighted = dars.dars_advantages(episodes, LINE, step_weight=0.0)
        assert all((a == b).all() for a, b in zip(plain, unweighted))
        for e in episodes:
            e.initial_info["facts"] = set("AC")
            for step in e.steps:
                step.info["facts"] = set("AC")  # nothing ever happens
        silent = dars.dars_advantages(episodes, LINE)
        assert all((a == b).all() for a, b in zip(plain, silent))


@pytest.mark.parametrize("combine", ["replace", "add", "redistribute"])
def test_random_ragged_groups(combine):
    """Finite, one number a step; permuting the list permutes the result; groups do not touch."""
    for seed in range(10):
        episodes = add_facts(random_groups(seed), seed)
        plain = dars.dars_advantages(episodes, LINE, combine=combine)
        assert all(
            a.dtype == np.float64 and len(a) == len(e.steps) for a, e in zip(plain, episodes)
        )
        assert all(np.isfinite(a).all() for a in plain)
        order = np.random.default_rng(seed).permutation(len(episodes))
        shuffled = dars.dars_advantages([episodes[i] for i in order], LINE, combine=combine)
        for place, i in enumerate(order):
            assert shuffled[place] == pytest.approx(plain[i], abs=1e-9)
        group = [k for k, e in enumerate(episodes) if e.task == 0]
        alone = dars.dars_advantages([episodes[k] for k in group], LINE, combine=combine)
        assert all((a == plain[k]).all() for a, k in zip(alone, group))
        with_unplayed = dars.dars_advantages(
            [common.Episode(0, []), *episodes], LINE, combine=combine
        )
        assert all((a == b).all() for a, b in zip(with_unplayed[1:], plain))
    assert dars.dars_advantages([], LINE) == []


def test_equal_rollouts_and_groups_of_one_get_nothing():
    for group in ([walk(1, "ABC", 0.1)] * 3, [walk(1, "ABCD", 5)]):
        for advantages in dars.dars_advantages(add_facts(group, 1), LINE):
            assert not advantages.any()


def test_each_episode_may_have_its_own_graph():
    """Two tasks with other predicates in one batch: as if each were alone."""
    one, two = [add_facts([e for e in random_groups(k) if e.task == 0], k, "AB") for k in (1, 2)]
    for e in two:
        e.task = "other"
    first, second = {"A": (), "B": ("A",)}, {"B": ()}
    together = dars.dars_advantages(one + two, [first] * len(one) + [second] * len(two))
    alone = dars.dars_advantages(one, first) + dars.dars_advantages(two, second)
    assert all((a == b).all() for a, b in zip(alone, together)) and together[0].any()


def failed_group(k, length=4):
    """All ways to play "x" or "y" `length` times, all failing; only "x" at step k does anything."""
    episodes = []
    for actions in itertools.product("xy", repeat=length):
        episode = walk(1, "S" + "PQRTUV"[:length])
        for t, (step, action) in enumerate(zip(episode.steps, actions)):
            step.action, step.info["facts"] = action, {"A"} if t >= k and actions[k] == "x" else ()
        episodes.append(episode)
    return episodes


@pytest.mark.parametrize("k", range(4))
def test_probe_only_step_k_matters(k):
    """All rollouts fail, so GRPO says nothing. |A| at k exceeds every other step's."""
    episodes = failed_group(k)
    assert not np.any(grpo.grpo_advantages(episodes))
    size = np.abs(dars.dars_advantages(episodes, {"A": ()}, gamma=0.0))
    others = np.delete(size, k, axis=1)
    assert (size[:, k] > 0.5).all() and (others == 0).all()


@pytest.mark.parametrize("k", range(4))
def test_probe_only_the_action_at_k_has_an_effect(k):
    """With returns (gamma 0.95) earlier steps share the credit, but not by what they do: the mean
    advantage of "x" exceeds that of "y" at step k and equals it everywhere else."""
    episodes = failed_group(k)
    advantages = np.array(dars.dars_advantages(episodes, {"A": ()}))
    chose_x = np.array([[step.action == "x" for step in e.steps] for e in episodes])
    effect = [a[x].mean() - a[~x].mean() for a, x in zip(advantages.T, chose_x.T)]
    assert effect.pop(k) > 1.0 and effect == pytest.approx([0, 0, 0], abs=1e-12)


def test_probe_breaking_is_blamed_where_it_happens():
    """Same state, same outcome: who drops the key there gets less than who goes on."""
    drop, carry = walk(1, "ABC", 1), walk(1, "ABC", 1)
    for episode, facts in ((drop, ["A", ""]), (carry, ["A", "A"])):
        for step, now in zip(episode.steps, facts):
            step.info["facts"] = set(now)
    first, second = dars.dars_advantages([drop, carry], LINE, gamma=0.0)
    assert first[0] == second[0] == 0 and first[1] < 0 < second[1]


def test_a_game_of_keydoor():
    """Real facts: take, drop and take again the key, then the shortest way to the goal."""
    (env,) = common.make_envs("keydoor", 1)
    _, info = env.reset(seed=3)
    initial, facts, actions = info["facts"], [], []
    while not info["success"]:
        best = env.unwrapped.best_actions()[0]
        actions += ["take", "drop", "take"] if best == "take" else [best]
        for action in actions[len(facts) :]:
            *_, info = env.step(action)
            facts.append(info["facts"])
    needs = env.unwrapped.prerequisites
    happened = dars.events(initial, facts, needs)
    rewards = dars.dars_rewards(happened, needs, kappa=math.inf, initial_facts=initial)
    assert rewards.sum() == pytest.approx(1)
    by_action = [(a, round(float(r), 4)) for a, r in zip(actions, rewards) if r]
    third = 0.3333
    assert by_action[:-1] == [("take", third), ("drop", -third), ("take", third), ("toggle", third)]
    assert rewards[-1] == pytest.approx(1 / 3)
    assert [sorted(step[2]) for step in happened if step[2]] == [["holding the key"]]


def test_scopes_start_anew_without_a_penalty():
    """Worked: a product with three of four wishes, back, the same again (an option chosen before is
    lost), the last wish, away, a poorer product, and one as good: only what is new is paid."""
    needs = {"type": (), "price": ("type",), "attrs": ("type",), "red": ("type",)}
    most = {"type", "price", "attrs"}
    plays = [("A", most), (None, ()), ("A", most), ("A", {*needs}), (None, ()), ("B", {"price"})]
    plays += [("B", ()), ("C", {*needs})]
    scopes, facts = zip(*plays)
    anew = {t for t in range(len(plays)) if t == 0 or scopes[t] != scopes[t - 1]}
    happened = dars.events((), facts, needs, anew)
    assert [sorted(errors) for _, errors, _ in happened] == [[]] * 6 + [["price"], []]
    assert not any(recovered for *_, recovered in happened) and happened[2][0] == most
    rewards = dars.dars_rewards(happened, needs, kappa=math.inf, anew=anew)
    assert rewards.tolist() == [0.75, 0, 0, 0.25, 0, 0, 0, 0]
    assert rewards_of(facts, needs, kappa=math.inf)[1] == -0.75  # without scopes leaving is a break


def test_a_break_within_a_scope_costs_as_before():
    """The right option, a wrong one, away and back, the right one: a loss, a gain. Then the root
    breaks, and Phi falls to what it was on leaving: 1/4, not the 0.09 of a dimmed B alone."""
    facts = [{"A", "B"}, {"A"}, (), {"A"}, {"A", "B"}, {"B"}]
    happened = dars.events((), facts, LINE, {0, 2, 3})
    rewards = dars.dars_rewards(happened, LINE, kappa=math.inf, anew={0, 2, 3})
    assert rewards == pytest.approx([0.5, -0.25, 0, 0, 0.25, -0.25])
    assert happened[4] == ({"B"}, set(), set())  # not recovered: the break was another scope's
    happened = dars.events((), [{"A"}, (), {"B", "C"}], LINE, {0, 2})
    rewards = dars.dars_rewards(happened, LINE, kappa=math.inf, anew={0, 2})
    assert rewards == pytest.approx([0.25, -0.25, 0.5])  # nor does it dim what rests on A here


def in_scopes(path, facts, task=1):
    """An episode through the states of `path`, one product a letter; "-": none."""
    episode = walk(task, path)
    episode.initial_info |= {"facts": frozenset(), "scope": None}
    for step, at in zip(episode.steps, path[1:]):
        step.info |= {"facts": frozenset(facts.get(at, ())), "scope": None if at == "-" else at}
    return episode


def test_no_round_of_leaving_and_coming_back_pays():
    """Beyond the first time, with the clip and without."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        places = {at: frozenset(random_facts(seed, "ABCD", 9)[k]) for k, at in enumerate("xyz")}
        stays, scopes, facts = [rng.choice(list("-xyz")) for _ in range(12)], [], []
        for at in stays * 5:
            for _ in range(rng.integers(1, 3)):
                scopes.append(at)
                facts.append(places.get(at, frozenset()))
        anew = {t for t in range(1, len(scopes)) if scopes[t] != scopes[t - 1]}
        happened = dars.events(facts[0], facts, LINE, anew)
        for kappa in (0.3, math.inf):
            options = {"kappa": kappa, "initial_facts": facts[0], "anew": anew}
            rewards = dars.dars_rewards(happened, LINE, **options)
            assert (rewards >= 0).all() and not rewards[len(scopes) // 2 :].any()
        best = max(len(places.get(at, ())) for at in stays) / 4
        assert rewards.sum() == pytest.approx(best - len(facts[0]) / 4)


def test_in_one_scope_all_is_as_before():
    """No scope, or always the same one: the same to the last bit. Another one at random: not."""
    for seed in range(5):
        episodes = add_facts(random_groups(seed), seed)
        plain = dars.dars_advantages(episodes, LINE)
        for e in episodes:
            for info in (e.initial_info, *(step.info for step in e.steps)):
                info["scope"] = "B000"
        same = dars.dars_advantages(episodes, LINE)
        assert all((a == b).all() for a, b in zip(plain, same))
        for e in episodes:
            for t, step in enumerate(e.steps):
                step.info["scope"] = t
        other = dars.dars_advantages(episodes, LINE)
        assert any((a != b).any() for a, b in zip(plain, other))


def test_coming_and_going_is_no_credit():
    """All fail. Who opens the right product is ahead of who opens a wrong one; who goes back and
    opens it again gains nothing by that, and leaving is no blame."""
    facts = {"R": {"type", "price"}, "W": {"price"}}
    needs = {"type": (), "price": ("type",)}
    right, wrong, again, stay = (in_scopes(p, facts) for p in ("-R", "-W", "-R-R-", "-RR"))
    one, other, *_ = dars.dars_advantages([right, wrong], needs, gamma=0.0, kappa=1.0)
    assert one[0] > 0.7 and other[0] < -0.7
    went, stayed = dars.dars_advantages([again, stay], needs, gamma=0.0)
    assert went[1] == stayed[1] == 0  # in R: leaves, or looks on
    assert went[0] > went[2] and went[3] == 0  # at "-": opens it first, and again


def test_a_game_of_webshop():
    """Real facts and scopes: to the product, choose, back, to it again, choose again, buy."""
    (env,) = common.make_envs("webshop", 1)
    _, start = env.reset(seed=0)
    goal = env.unwrapped.session.goal
    choose = [f"click[{value}]" for value in goal.goal_options.values()]
    visit = [f"click[{goal.asin}]", *choose]
    actions = [f"search[{goal.instruction_text}]", *visit, "click[< prev]", *visit]
    infos = [env.step(action)[-1] for action in [*actions, "click[buy now]"]]
    assert infos[-1]["success"] and choose
    scopes, facts = zip(*((info["scope"], info["facts"]) for info in [start, *infos]))
    anew = {t for t, (a, b) in enumerate(zip(scopes, scopes[1:])) if a != b}
    assert len(anew) == 3
    needs = env.unwrapped.prerequisites
    happened = dars.events(facts[0], facts[1:], needs, anew)
    rewards = dars.dars_rewards(happened, needs, kappa=math.inf, anew=anew)
    share = 1 / len(needs)
    first = [0, 3 * share, *[share] * len(choose)]
    assert rewards == pytest.approx([*first, *[0] * (len(infos) - len(first))])
