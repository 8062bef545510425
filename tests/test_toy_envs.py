"""KeyDoor: the rules, the text, exact distances, chance, and the protocol of design section 5."""

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


@pytest.mark.parametrize("options", [{}, {"size": 3}, {"alias": True}, {"slip": 0.3}, {"size": 10}])
def test_check_env(options):
    check_env(make(**options).unwrapped, skip_render_check=True)


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


def test_best_actions_win_in_exactly_the_distance():
    env = make()
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
