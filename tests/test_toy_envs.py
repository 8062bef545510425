"""The toy tasks: rules, text, exact distances, chance, and the protocol of the README."""

import random
from collections import deque

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import common
import toy_envs  # noqa: F401  (registers the environments)
from toy_envs.gridworld import bearing


def make(**options):
    return gymnasium.make("toy/KeyDoor-v0", **options)


TASKS = ["KeyDoor", "Forage", "Workshop", "Fork"]


@pytest.mark.parametrize("options", [{}, {"size": 3}, {"alias": True}, {"slip": 0.3}, {"size": 10}])
def test_check_env(options):
    check_env(make(**options).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("task", TASKS)
def test_the_protocol(task):
    env = gymnasium.make(f"toy/{task}-v0")
    check_env(env.unwrapped, skip_render_check=True)
    for seed in range(20):
        text, start = env.reset(seed=seed)
        again, same = env.reset(seed=seed)
        assert text == again and start == same
        for parents in env.unwrapped.prerequisites.values():
            assert set(parents) <= set(env.unwrapped.prerequisites)
        over, reward = False, 0.0
        rng = random.Random(seed)
        while not over:
            here = start["state"]
            *_, info = env.step("dance")
            assert not info["valid"] and info["state"] == here and not info["success"]
            _, r, ended, limit, start = env.step(rng.choice(start["actions"]))
            reward, over = reward + r, ended or limit
            assert start["valid"] and hash(start["state"]) is not None
            assert start["facts"] <= set(env.unwrapped.prerequisites)
        assert start["success"] == (reward == 1.0)
        if ended:  # nothing happens after the end
            state = env.unwrapped.state
            env.unwrapped.step(start["actions"][0])
            assert env.unwrapped.state == state
    assert len({env.reset(seed=seed)[0] for seed in range(100)}) > 10 or task == "Forage"


def test_same_seed_same_task_and_luck():
    plays = []
    for _ in range(2):
        env = make(slip=0.5)
        texts = [env.reset(seed=11)[0]]
        texts += [env.step(a)[0] for a in ["east", "north", "take", "west"] * 5]
        plays.append(texts)
    assert plays[0] == plays[1]
    assert len({make().reset(seed=s)[0] for s in range(50)}) > 45


def test_a_whole_game_in_words():
    """A task that is set by hand: every observation and fact on the way."""
    env = make(size=5).unwrapped
    env.reset(seed=0)
    env.door, env.goal, env.first_key = (2, 1), (4, 1), (0, 2)
    env.state, env._distances = ((1, 2), (0, 2), False), {}
    assert (
        env.describe()
        == "key 1 west . door closed 1 east 1 north . goal 3 east 1 north . carrying nothing"
    )
    assert env.distance() == 8
    script = ["west", "take", "east", "north", "toggle", "east", "east", "east"]
    facts = [set(), {"holding the key"}] + [{"holding the key"}] * 2
    facts += [{"holding the key", "the door is open"}] * 3
    for left, (action, true) in enumerate(zip(script, [*facts, None])):
        text, reward, ended, _, info = env.step(action)
        assert info["valid"] and env.distance() == 7 - left
        assert true is None or (info["facts"] == true and reward == 0 and not ended)
    assert (reward, ended, info["success"]) == (1.0, True, True)
    assert info["facts"] == set(env.prerequisites)
    assert text == "door open 2 west . goal here . carrying key"


def test_what_has_no_effect_and_what_breaks():
    env = make(size=5).unwrapped
    env.reset(seed=0)
    env.door, env.goal, env.state = (2, 1), (4, 1), ((1, 1), (0, 0), False)
    for action in ["take", "drop", "toggle", "east"]:  # no key here, none carried, a closed door
        state = env.state
        info = env.step(action)[4]
        assert env.state == state and info["valid"]
    info = env.step("dance")[4]
    assert not info["valid"] and env.state == state
    env.state = (1, 1), None, False
    assert "the door is open" in env.step("toggle")[4]["facts"]
    assert "the door is open" not in env.step("toggle")[4]["facts"]
    env.step("toggle")
    assert "holding the key" not in env.step("drop")[4]["facts"]
    env.state = (2, 1), None, True
    assert env.transition(env.state, "toggle") == env.state  # it cannot close on the agent


def brute_force_distance(env):
    """Breadth-first search with all actions, dropping the key included."""
    queue, seen = deque([(env.state, 0)]), {env.state}
    while queue:
        state, steps = queue.popleft()
        if env.outcome(state) == 1.0:
            return steps
        for action in env.actions:
            after = env.transition(state, action)
            if after not in seen:
                seen.add(after)
                queue.append((after, steps + 1))
    return None


def test_distance_is_exact_from_random_states():
    rng = random.Random(0)
    for seed in range(8):
        env = make(size=5).unwrapped
        env.reset(seed=seed)
        for _ in range(rng.randrange(40)):
            if not env.step(rng.choice(env.actions))[2]:
                continue
            break
        assert env.distance() == brute_force_distance(env)


@pytest.mark.parametrize("task", TASKS)
def test_best_actions_win_in_exactly_the_distance(task):
    env = gymnasium.make(f"toy/{task}-v0")
    for seed in range(30):
        _, info = env.reset(seed=seed)
        distance, ended, steps = env.unwrapped.distance(), False, 0
        assert distance <= 40
        while not ended:
            *_, ended, limit, info = env.step(env.unwrapped.best_actions()[0])
            steps += 1
        assert info["success"] and steps == distance and not limit


def test_the_turn_limit_truncates_and_does_not_terminate():
    env = make()
    env.reset(seed=0)
    ends = [env.step("take")[2:4] for _ in range(40)]
    assert ends[:-1] == [(False, False)] * 39 and ends[-1] == (False, True)


def test_alias_hides_the_inventory_in_text_and_key():
    env = make(size=5, alias=True).unwrapped
    env.reset(seed=3)
    _, key, _ = env.state
    env.state = key, key, False
    text, info = env.describe(), env.info()
    after, _, _, _, later = env.step("take")
    assert text == after and info["state"] == later["state"] and info["facts"] != later["facts"]


def test_slip_moves_elsewhere_about_as_often_as_asked():
    env, moved = make(size=9, slip=0.4).unwrapped, 0
    env.reset(seed=1)
    for _ in range(2000):
        env.state = (1, 4), (0, 0), False
        env.step("north")
        moved += env.state[0] != (1, 3)
    assert moved / 2000 == pytest.approx(0.4 * 3 / 4, abs=0.04)


def test_environments_share_nothing():
    first, second = common.make_envs("keydoor", 2)
    before, _ = second.reset(seed=1)
    first.reset(seed=1)
    while not first.step(first.unwrapped.best_actions()[0])[2]:
        pass
    assert second.unwrapped.describe() == before and not second.unwrapped.info()["success"]


def test_bearing():
    assert bearing((2, 2), (4, 1)) == "2 east 1 north"
    assert bearing((2, 2), (2, 5)) == "3 south"
    assert bearing((2, 2), (2, 2)) == "here"


def test_options_that_make_no_sense():
    with pytest.raises(ValueError, match="size of at least 3"):
        make(size=2)


def world(task, **options):
    return gymnasium.make(f"toy/{task}-v0", **options).unwrapped


def test_forage_by_hand():
    """A 4 x 4 map that is set by hand: what a look tells, what is new, and the F1 of an answer."""
    env = world("Forage", size=4)
    env.reset(seed=0)
    env.gold = ("fig", "olive", "melon", "apple")
    env.finds = {(0, 0): "fig", (1, 0): "olive", (2, 0): "fig", (3, 3): "melon", (3, 0): "apple"}
    env.state = (1, 0), frozenset(), frozenset(), False
    assert env.describe() == "seen nothing . new here"
    text, _, _, _, info = env.step("look")
    assert info["found"] == ("fig", "olive", "fig") and info["gold"] == env.gold
    assert text == "found fig olive fig . seen fig olive . new 1 west 1 south"
    text, *_, info = env.step("south")
    assert "found" not in info and text == "seen fig olive . new 1 west"
    assert info["facts"] == {"fig is found", "olive is found"}
    *_, info = env.step("look")
    assert info["found"] == ("olive",)
    state = env.state
    assert env.distance() == 6  # east, east, look, south, look, answer
    _, reward, ended, _, info = env.step("answer")
    assert (reward, ended, info["success"]) == (pytest.approx(2 * 2 / (2 + 4)), True, False)
    env.state = state[0], frozenset(env.gold), state[2], False
    _, reward, _, _, info = env.step("answer")
    assert reward == 1.0 and info["success"]


def test_forage_has_common_kinds_near_and_rare_ones_far():
    env = world("Forage")
    for seed in range(30):
        env.reset(seed=seed)
        start, _, _, _ = env.state
        copies = {kind: [c for c, k in env.finds.items() if k == kind] for kind in env.gold}
        assert [len(copies[kind]) for kind in env.gold] == [3, 3, 1, 1]
        far = {
            k: min(abs(x - start[0]) + abs(y - start[1]) for x, y in c) for k, c in copies.items()
        }
        assert max(far[k] for k in env.gold[:2]) < min(far[k] for k in env.gold[2:])


def test_forage_distance_by_brute_force_over_ways():
    """All orders of looks at all cells: the shortest walk from which everything was seen."""
    env = world("Forage", size=4)
    for seed in range(4):
        env.reset(seed=seed)
        assert env.distance() == brute_force_distance_forage(env)


def brute_force_distance_forage(env):
    queue, seen = deque([(env.state[0], frozenset(), 0)]), set()
    while queue:
        (x, y), found, steps = queue.popleft()
        if found == set(env.gold):
            return steps + 1  # and the answer
        if (x, y, found) in seen:
            continue
        seen.add((x, y, found))
        near = [(x, y), (x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]
        queue.append(((x, y), found | {env.finds[c] for c in near if c in env.finds}, steps + 1))
        for a, b in near[1:]:
            if 0 <= a < env.size and 0 <= b < env.size:
                queue.append(((a, b), found, steps + 1))
    return None


def test_workshop_by_hand():
    env = world("Workshop")
    env.reset(seed=0)
    env.product, env.recipe = "red chair", ["cut", "drill", "glue", "sand", "paint"]
    assert env.describe() == "red chair" and env.distance() == 5
    *_, info = env.step("weld")  # wasted
    assert (info["tool"], info["matched"], env.state) == ("weld", 0.0, 0)
    text, reward, ended, _, info = env.step("cut")
    assert (text, reward, ended, info["matched"]) == ("red chair 1", 0.0, False, 0.2)
    assert info["facts"] == {"tool 1 is used"} and env.distance() == 4
    *_, info = env.step("hammer")
    assert info["tool"] is None and not info["valid"]
    env._distances = {}
    state = env.state
    text, reward, ended, _, info = env.step("glue")  # skips the drill
    assert (text, reward, ended) == ("red chair spoiled", 0.0, True) and not info["success"]
    env.state = state
    for tool in ("drill", "glue", "sand", "paint"):
        _, reward, ended, _, info = env.step(tool)
    assert (reward, ended, info["success"], info["matched"]) == (1.0, True, True, 1.0)


def test_workshop_transitions_recur_across_products():
    from toy_envs.workshop import BODIES, FINISHES, Workshop

    edges = {}
    for finish, end in FINISHES.items():
        for body, begin in BODIES.items():
            recipe = f"{begin} {end}".split()
            assert len(recipe) in (5, 6) and set(recipe) <= set(Workshop.actions)
            for pair in zip(recipe, recipe[1:]):
                assert pair[0] != pair[1]
                edges.setdefault(pair, set()).add((finish, body))
    assert sum(len(products) >= 4 for products in edges.values()) > len(edges) / 2


def test_fork_by_hand():
    env = world("Fork", length=3, density=0.34)
    env.reset(seed=0)
    env.doors, env.names, env.state = {1: "right"}, {1: "fork 1"}, (0, True)
    assert env.describe() == "fork 1 right . corridor" and env.distance() == 3
    for action in ("left", "right"):  # no doors here
        env.step(action)
        assert env.state == (0, True)
    assert env.step("forward")[0] == "fork 1" and env.best_actions() == ["right"]
    env.step("forward")
    assert env.state == (1, True)
    wrong, right = env.transition((1, True), "left"), env.transition((1, True), "right")
    assert (wrong, right) == ((2, False), (2, True))
    env.state = wrong
    assert env.describe() == "corridor" and env.distance() == float("inf") and not env.facts()
    _, reward, ended, _, info = env.step("forward")
    assert (reward, ended, info["success"]) == (0.0, True, False)
    env.state = right
    _, reward, ended, _, info = env.step("forward")
    assert (reward, ended, info["success"]) == (1.0, True, True)
    assert info["facts"] == set(env.prerequisites)


@pytest.mark.parametrize("length, density, forks", [(16, 0.25, 4), (10, 1.0, 10), (5, 0.0, 0)])
def test_fork_density(length, density, forks):
    env = world("Fork", length=length, density=density)
    env.reset(seed=1)
    assert len(env.doors) == forks and set(env.doors.values()) <= {"left", "right"}
    assert env.describe().count("fork") == forks + (0 in env.doors)


@pytest.mark.parametrize(
    "task, options", [("Forage", {"size": 3}), ("Fork", {"length": 0}), ("Fork", {"density": 2})]
)
def test_more_options_that_make_no_sense(task, options):
    with pytest.raises(ValueError, match="size of at least|no length"):
        world(task, **options)
