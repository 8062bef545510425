"""ALFWorld: recorded games, exact distances, exact states, splits, made games, and bad input."""

import importlib.util
import json
import lzma
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import dars
import gymnasium
import pytest
from compare_alfworld import Ours, choose, digest
from conftest import HOUSE
from gymnasium.utils.env_checker import check_env

import common
from real_envs.alfworld_engine import Game, GameError
from real_envs.alfworld_games import TYPES, Games, held_out, read_game, write_problem
from real_envs.alfworld_reading import read_expression, read_template
from real_envs.alfworld_tasks import Task

DATA = HOUSE / "tests" / "data"
MADE = str(DATA / "alfworld.jsonl.xz")  # two made games of each type
REAL = str(HOUSE.parent / "shared" / "data" / "alfworld_games.jsonl.xz")
real_games = pytest.mark.skipif(not Path(REAL).exists(), reason=f"needs {REAL}")
make_games = pytest.mark.skipif(
    not importlib.util.find_spec("alfworld"), reason="pip install --no-deps alfworld==0.4.2"
)
SPLITS = {split: Games(MADE, split) for split in ("train", "valid_unseen")}


def make(**options):
    return gymnasium.make("real/ALFWorld-v0", **{"games": MADE, **options})


def made(kind, split="train"):
    """A made game of a type, as the text of its file."""
    path = next(p for p in SPLITS[split].paths if p.split("/")[1].startswith(kind))
    return SPLITS[split].read(path)


# ---- the engine ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records():
    with lzma.open(DATA / "alfworld_traces.jsonl.xz", "rt") as file:
        return [json.loads(line) for line in file]


def test_recorded_episodes(records):
    """Every text, and a hash of commands, win, reward and facts, as the stock engine (0.4.2) gave
    them: shortest ways and random play. compare_alfworld.py --record makes the file."""
    kinds, states = set(), 0
    for record in records:
        games = SPLITS[record["path"].split("/")[0]]
        ours, won = Ours(games.read(record["path"])), False
        kinds.add(ours.task.type)
        for episode, command, text, rest in record["states"]:
            look = ours.reset() if command is None else ours.step(command)
            assert (look["text"], digest(look)) == (text, rest), (record["path"], command)
            won |= look["won"] and episode < 0
            states += 1
        assert won
    assert kinds == {*TYPES} and states > 300


def test_expressions_and_templates():
    assert read_expression("r.name or r.id") == [("?r", "name")]
    assert read_expression("o") == [("?o", "name")]
    for bad in ("__import__('os')", "o.__class__", "o.name * 2", "o.name if o else 1", "(o)", ""):
        with pytest.raises(GameError, match="not supported"):
            read_expression(bad)
    (plain, *_), (_, _, terms, query, is_list), (end, *_) = read_template(
        " see [{o.name | on(o:x)}]."
    )
    assert (plain, terms, is_list, end) == ("see ", [("?o", "name")], True, ".")
    assert query == ((True, "on", ("?o",)),)


def test_nothing_is_ever_executed():
    source = "".join(path.read_text() for path in (HOUSE / "real_envs").glob("alfworld*.py"))
    assert not re.search(
        r"\b(eval|exec|compile|__import__)\((?!\")(?!\s*#)", source.replace("re.compile", "")
    )


def test_importing_the_package_imports_nothing_optional():
    code = "import sys, real_envs.alfworld; print({'alfworld', 'textworld'} & {*sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], cwd=HOUSE, capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr


BROKEN = {  # what is wrong: (where in the file, from, to, what the error says)
    "forall": ("pddl_domain", "(atLocation ?a ?l)", "(forall (?x) (atLocation ?a ?x))", "forall"),
    "imply": ("pddl_domain", "(holds ?a ?o)", "(imply (holds ?a ?o) (holds ?a ?o))", "imply"),
    "derived": ("pddl_domain", "(:functions", "(:derived (x) (y)) (:functions", "derived"),
    "subtypes": ("pddl_domain", "receptacle\n", "receptacle - object1\n", "types below"),
    "when in when": ("pddl_domain", "(not (holdsAny ?a))", "(not (isOn ?a))", "conditional effect"),
    "predicate": ("pddl_domain", "(inReceptacle ?o ?r)", "(insideOf ?o ?r)", "not in the PDDL"),
    "arity": ("pddl_problem", "(atLocation agent1 loc_bar_start)", "(atLocation agent1)", "not in"),
    "object": ("pddl_problem", "agent1 - agent", "agent2 - agent", "does not declare agent1"),
    "no goal": ("pddl_problem", "(:goal", "(:wish", "lacks :goal"),
    "brackets": ("pddl_problem", "(:init", "(:init (", "never closed"),
    "brackets too": ("pddl_problem", "(:init", ") (:init", "too many"),
    "another goal": ("pddl_problem", "(inReceptacle ?o ?r)", "(opened ?r)", "none of ALFW"),
    "nested": ("pddl_problem", "(:init", "(:init " + "(" * 99, "nested too deeply"),
    "task": ("grammar", "Your task is to", "You should", "states no task"),
    "json": ("grammar", '"intro": [', '"intro": {', "broken game file"),
    "texts": ("grammar", "action look {", "action see {", "no text for look"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_games_outside_the_fragment_say_so(name):
    where, old, new, message = BROKEN[name]
    game = json.loads(made("pick_and_place"))
    assert old in game[where]
    game[where] = game[where].replace(old, new)
    with pytest.raises(GameError, match=f"^some game: .*{message}"):
        read_game(json.dumps(game), "some game")


@pytest.mark.parametrize("kind, old, new", [
    ("pick_and_place", "?o", "mug_bar_01"), ("pick_and_place", "?r", "?o"),
    ("pick_two", "?o2", "?o1"), ("pick_two", "(not (= ?o1 ?o2))", ""),
    ("look", "(toggleable ?ot)", ""),
])  # fmt: skip
def test_goals_that_only_look_like_one_of_the_six(kind, old, new):
    game = json.loads(made(kind))
    start, goal = game["pddl_problem"].split("(:goal")
    assert old in goal
    game["pddl_problem"] = f"{start}(:goal{goal.replace(old, new)}"
    with pytest.raises(GameError, match="none of ALFWorld's six"):
        read_game(json.dumps(game), "a game")


def test_truncated_and_garbled_game_files():
    """Whatever happens to a file, it is read, or there is one clear error, now or in play."""
    text, rng, errors = made("pick_clean"), random.Random(0), 0
    for trial in range(90):
        cut = rng.randrange(len(text))
        junk = rng.choice(["", "(", ")", '"', "}", "[", "\\u0000", "x", "?", "-", ":"])
        rest = text[cut + rng.randrange(30) :] if trial % 3 else ""
        game = text[:cut] + junk + rest
        try:
            game, task = read_game(game, "garbled")
            state = game.start
            for _ in range(15):
                commands = game.commands(state)
                operation = commands[rng.choice(sorted(commands))]
                state = game.apply(state, operation)
                assert isinstance(game.answer(state, operation), str) and task.distance(state) >= 0
        except GameError as error:
            errors += 1
            assert "\n" not in str(error)
    assert errors > 45


def test_a_goal_that_cannot_be_reached():
    game = json.loads(made("pick_and_place"))
    game["pddl_problem"] = re.sub(r"\(pickupable [^)]*\)", "", game["pddl_problem"])
    with pytest.raises(GameError, match="cannot be reached"):
        read_game(json.dumps(game), "a game")


# ---- distances -----------------------------------------------------------------------------------


def small_world(kind, seed):
    """A game of a type whose every state can be visited: few places, three things, and traps: two
    places at one spot, a thing that lies in two places, one that cannot be put down again."""
    rng, game = random.Random(f"{kind} {seed}"), json.loads(made(kind))
    goal = game["pddl_problem"][game["pddl_problem"].index("(:goal") :]
    things = re.findall(r"objectType \?\w+ (\w+)Type", goal)
    thing = next(t for t in things if "Lamp" not in t)
    target = (re.findall(r"receptacleType \?\w+ (\w+)Type", goal) or ["Desk"])[0]
    tools = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
    tool = tools.get(kind.split("_")[1], "Shelf")
    places = {target: 1, "Drawer": 1, "Desk": 1, tool: 1}
    extra = rng.choice([target, "Drawer"])
    places[extra] += 1
    lamps = [t for t in things if "Lamp" in t]
    lies = [f"{p}_{k}" for p, n in places.items() if p != target for k in range(1, n + 1)]
    where = [(t, rng.choice(lies)) for t in [thing, thing, "Junk", *lamps]]
    holds = {p: {thing, "Junk"} for p in places} | {"Drawer": {thing}, target: {thing}}
    if seed % 2:
        holds["Desk"] = holds[tool] = {"Junk"} if target != "Desk" else {thing}
    able = {thing}
    tables = SimpleNamespace(
        VAL_RECEPTACLE_OBJECTS=holds,
        VAL_ACTION_OBJECTS={
            "Cleanable": able, "Heatable": able, "Coolable": able, "Toggleable": {*lamps},
        },
        OPENABLE_CLASS_LIST=["Drawer", target] if seed % 3 else ["Drawer"],
    )  # fmt: skip
    problem = write_problem(places, where, goal, tables)
    if seed % 2:
        problem = re.sub(r"(receptacleAtLocation \S+) loc_bar_2\)", r"\1 loc_bar_1)", problem)
    if seed % 4 > 1:
        also = re.search(r"receptacleType (\S+) " + rng.choice([target, "Desk"]), problem)[1]
        one = f"{thing}_bar_00"
        problem = problem.replace("(:init", f"(:init (inReceptacle {one} {also})")
    return Game({**game, "pddl_problem": problem})


def everything(game, most):
    """The graph of all states (without what only the texts remember), breadth first."""
    known = game.rules.fluents - {"checked", "ison"}

    def key(state):
        return tuple(state[p] for p in sorted(known))

    states, edges, queue = {key(game.start): game.start}, {}, [key(game.start)]
    for here in queue:
        edges[here] = []
        for operation in game.commands(states[here]).values():
            after = game.apply(states[here], operation)
            edges[here].append(key(after))
            if key(after) not in states:
                states[key(after)] = after
                queue.append(key(after))
        assert len(states) < most
    return states, edges


def search(game, states, edges):
    """Distances to success by plain search backwards through the whole graph."""
    before = {here: [] for here in states}
    for here, after in edges.items():
        for there in after:
            before[there].append(here)
    distances = {here: 0 for here, state in states.items() if game.won(state)}
    queue = [*distances]
    for here in queue:
        for earlier in before[here]:
            if earlier not in distances:
                distances[earlier] = distances[here] + 1
                queue.append(earlier)
    return {here: distances.get(here, math.inf) for here in states}


@pytest.mark.parametrize("kind", TYPES)
def test_distance_equals_plain_search_in_every_state(kind):
    compared = lost = 0
    for seed in (1, 3):
        game = small_world(kind, seed)
        states, edges = everything(game, 40_000)
        truth = search(game, states, edges)
        task = Task(game)
        assert task.type == kind
        for here, state in states.items():
            assert task.distance(state) == truth[here]
        compared, lost = compared + len(states), lost + sum(map(math.isinf, truth.values()))
    assert compared > 2000 and (lost or kind not in TYPES[:2])


@pytest.mark.parametrize("source", ["made", pytest.param("real", marks=real_games)])
def test_distance_agrees_with_every_command_in_whole_games(source):
    """0 exactly where the game is won; else the best command brings it one nearer, none two."""
    games = Games(REAL, "valid_seen") if source == "real" else SPLITS["train"]
    kinds = [next(p for p in games.paths if f"/{kind}-" in p) for kind in TYPES]
    for path in kinds:
        game, task = games.load(games.paths.index(path))
        rng, state = random.Random(path), game.start
        for _ in range(25):
            commands, here = game.commands(state), task.distance(state)
            after = [task.distance(game.apply(state, op)) for op in commands.values()]
            assert (here == 0) == game.won(state)
            assert here == 0 or here == 1 + min(after) or math.isinf(here + min(after))
            command = choose(rng, sorted(commands)).strip()
            state = game.apply(state, commands.get(command) or commands["look"])


@real_games
def test_walkthroughs_of_real_games_are_shortest_ways():
    games = Games(REAL, "valid_unseen")
    for number in range(0, len(games), 8):
        game, task = games.load(number)
        walkthrough, state = json.loads(games.read(games.paths[number]))["walkthrough"], game.start
        assert task.distance(state) == len(walkthrough)
        for left, command in enumerate(walkthrough):
            state = game.apply(state, game.commands(state)[command])
            assert task.distance(state) == len(walkthrough) - left - 1
        assert game.won(state)


# ---- the environment -----------------------------------------------------------------------------


def play(env, seed, rng, steps=40):
    """Random play: yields (command, what step gave)."""
    _, info = env.reset(seed=seed)
    for _ in range(steps):
        command = choose(rng, info["actions"])
        result = env.step(command)
        info = result[-1]
        yield command, result
        if result[2]:
            return


def test_check_env():
    check_env(make().unwrapped, skip_render_check=True)


def test_the_protocol():
    env, kinds = make(), set()
    for seed in [*range(6), *range(1_000_000, 1_000_006)]:
        text, start = env.reset(seed=seed)
        again, same = env.reset(seed=seed)
        assert text == again and start == same and not start["success"]
        needs = env.unwrapped.prerequisites
        assert all({*parents} <= {*needs} for parents in needs.values())
        kinds.add((seed > 9, start["task_type"], start["game"].split("/")[0]))
        for command, (_, reward, ended, limit, info) in play(env, seed, random.Random(seed)):
            before, start = start, info
            assert info["valid"] == (command.strip() in before["actions"])
            assert info["tool"] == (command.split()[0] if info["valid"] else None)
            assert {c.split()[0] for c in info["actions"]} <= {*env.unwrapped.tools}
            assert reward == info["success"] == ended and not limit
            assert info["valid"] or info["state"] == before["state"]
            assert info["metrics"] == {f"success/{info['task_type']}": float(ended)}
    assert len(kinds) == 12


def test_a_whole_game_in_words():
    env = make(commands=False, split="valid_unseen", reward=10.0)
    seed = next(i for i, p in enumerate(SPLITS["valid_unseen"].paths) if "pick_cool" in p)
    text, info = env.reset(seed=seed)
    assert text.startswith(
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. "
    )
    assert text.endswith("\n\nYour task is to: put a cool mug in microwave.")
    script = ["go to countertop 1", "take mug 1 from countertop 1", "go to fridge 1",
              "cool mug 1 with fridge 1", "go to microwave 1", "open microwave 1",
              "move mug 1 to microwave 1"]  # fmt: skip
    said, subgoals = [], []
    for left, command in enumerate(script):
        assert env.unwrapped.distance() == len(script) - left
        assert command in env.unwrapped.best_actions()
        text, reward, ended, _, info = env.step(command)
        said.append(text)
        subgoals.append({f for f in info["facts"] if "(" not in f})
    assert said[1] == "You pick up the mug 1 from the countertop 1."
    assert said[2] == "You arrive at fridge 1. The fridge 1 is closed."
    assert said[3] == "You cool the mug 1 using the fridge 1."
    assert (reward, ended, info["success"], info["tool"]) == (10.0, True, True, "move")
    found, taken, cool, placed = (f"a mug is {x}" for x in ("found", "taken", "cool", "in place"))
    needs = {found: (), taken: (found,), cool: (taken,), placed: (cool,)}
    assert env.unwrapped.prerequisites == needs
    steps = [{found}, {found, taken}, {found, taken}, {found, taken, cool}]
    assert subgoals == [*steps, steps[-1], steps[-1], {*needs}]
    state = env.unwrapped.state
    text, reward, ended, _, info = env.unwrapped.step("go to fridge 1")  # nothing after the end
    assert (text, reward, ended, info["valid"]) == ("Nothing happens.", 0.0, True, False)
    assert env.unwrapped.state is state and info["success"]


@pytest.mark.parametrize("number", range(12))
def test_a_shortest_way_establishes_every_subgoal_and_breaks_none(number):
    env = make(split=["train", "valid_unseen"][number // 6])
    _, info = env.reset(seed=number % 6)
    needs, facts, ended = env.unwrapped.prerequisites, [info["facts"]], False
    while not ended:
        *_, ended, _, info = env.step(env.unwrapped.best_actions()[0])
        facts.append(info["facts"])
    happened = dars.events(facts[0], facts[1:], needs)
    assert not any(errors for _, errors, _ in happened)
    assert {*needs} <= info["facts"]
    order = [
        node for established, *_ in happened for node in sorted(established, key=[*needs].index)
    ]
    for node in order:
        assert all(
            parent in facts[0] or order.index(parent) < order.index(node) for parent in needs[node]
        )


def test_admissible_commands_in_the_prompt_are_a_switch():
    plain, _ = make(commands=False).reset(seed=0)
    text, info = make().reset(seed=0)
    assert text.startswith(
        plain + "\n\nYour admissible actions of the current situation are: ['go to "
    )
    assert text.endswith("\n 'look'].") and info["text"] == plain
    assert all(f"'{c}'" in text for c in info["actions"] if c != "help") and "'help'" not in text


def test_equal_states_have_equal_futures_and_the_text_does_not_tell():
    """All that leads to the same key has the same facts, commands, distance, and answers."""
    env, known, met, texts = make(commands=False).unwrapped, {}, 0, {}
    for episode in range(18):
        for _, (text, *_, info) in play(env, episode % 6, random.Random(episode), 60):
            key, position = (info["game"], info["state"]), env.snapshot()
            answers = {}
            for command in info["actions"] if key in known or episode % 5 == 0 else ():
                answers[command] = env.step(command)[0]
                env.restore(position)
            future = info["actions"], info["success"], env.distance(), answers
            if answers and key in known:
                met += 1
                assert known[key] == future
            elif answers:
                known[key] = future
            texts.setdefault((info["game"], text), set()).add(key)
    assert met > 20 and max(map(len, texts.values())) > 5


@real_games
def test_the_state_knows_which_of_two_was_seen():
    env = make(games=REAL).unwrapped
    for seed in (n for n, path in enumerate(env.games.paths) if "pick_two" in path):
        env.reset(seed=seed)
        places = {r for o, r in env.state["inreceptacle"] if o in env.task.things}
        if len(places & env.task.openable) > 1:
            break
    first, second, *_ = sorted(env.game.names[r] for r in places & env.task.openable)
    elsewhere = next(env.game.names[r] for r in env.task.spot if r not in places)
    found = []
    for place in (first, second):
        env.reset(seed=seed)
        for command in ("go to", "open", "close"):
            assert env.step(f"{command} {place}")[-1]["valid"]
        found.append(env.step(f"go to {elsewhere}")[-1])
    assert found[0]["facts"] == found[1]["facts"] and found[0]["state"] != found[1]["state"]


def test_snapshot_and_restore():
    env, rng = make().unwrapped, random.Random(0)
    for seed in range(6):
        plays = []
        for command, result in play(env, seed, rng, 20):
            plays.append((command, result, env.snapshot()))
        for (_, _, position), (command, result, _) in zip(plays, plays[1:]):
            env.restore(position)
            assert env.step(command) == result


def test_environments_share_games_but_no_state():
    first, second = common.make_envs("alfworld", 2, json.dumps({"games": MADE}))
    before, info = second.reset(seed=1)
    first.reset(seed=1)
    assert first.unwrapped.game is second.unwrapped.game
    first.step(info["actions"][0])
    assert second.unwrapped.actions == info["actions"]


def test_splits_are_in_one_order_and_disjoint():
    games, unseen = SPLITS["train"], SPLITS["valid_unseen"]
    assert games.paths == sorted(games.paths) and not {*games.paths} & {*unseen.paths}
    assert games.digest == Games(MADE, "train").digest != unseen.digest
    targets = [{tuple(p.split("/")[1].split("-")[1:4]) for p in g.paths} for g in (games, unseen)]
    assert not targets[0] & targets[1]
    names = [[held_out(f"{t} on {r}") for t, _, r in ts] for ts in targets]
    assert not any(names[0]) and all(names[1])


@real_games
def test_official_splits():
    counts = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
    digests = {"train": "6ab71f804f82", "valid_seen": "cc3d2e964ba3"}
    for split, count in counts.items():
        env = make(games=REAL, split=split).unwrapped
        assert len(env.games) == count
        assert env.reset(seed=count - 1)[1]["game"].startswith(split)
        assert env.games.digest == digests.get(split, "c2da12ecefba")


# ---- bad input -----------------------------------------------------------------------------------


def test_what_is_not_understood_does_nothing_and_says_so():
    env = make()
    _, start = env.reset(seed=2)
    long = "go to countertop 1" * 600
    for action in ["", " ", "dance", "LOOK", "go  to countertop 1", "go to", "go to moon 1", long,
                   "look\nlook", "\x00\x1b[2J", "look; look", "{o}", "take", "\u2603"]:  # fmt: skip
        text, reward, ended, limit, info = env.step(action)
        assert text.startswith("Nothing happens.") and not (reward or ended or limit)
        assert not info["valid"] and info["state"] == start["state"] and info["tool"] is None
    assert env.step(" look\n")[-1]["valid"]  # as stock: trimmed


def test_the_turn_limit_truncates_and_does_not_terminate():
    env = make()
    env.reset(seed=0)
    ends = [env.step("look")[2:4] for _ in range(50)]
    assert ends[:-1] == [(False, False)] * 49 and ends[-1] == (False, True)


@pytest.mark.parametrize("seed, same", [(6, 0), (999_999, 999_999 % 6), (1_000_007, 1_000_001)])
def test_seeds_count_round_and_round(seed, same):
    """So that a run, which draws from a million seeds, can use any number of games."""
    assert make().reset(seed=seed)[1]["game"] == make().reset(seed=same)[1]["game"]
    with pytest.raises(GameError, match="the split has 6, from 0 on"):
        make().unwrapped.games.load(6)


def test_nobody_trains_on_the_held_out_games():
    env = make(split="valid_unseen")
    env.reset(seed=0)
    with pytest.raises(GameError, match="would be those to train on"):
        env.reset(seed=1_000_000)


def test_a_step_before_the_first_reset():
    with pytest.raises(gymnasium.error.ResetNeeded):
        make().unwrapped.step("look")


@pytest.mark.parametrize("options, message", [
    ({"games": ""}, "where are the games"),
    ({"games": "/nowhere"}, "there is no /nowhere: set ALFWORLD_DATA"),
    ({"split": "test"}, "no split 'test'"),
    ({"split": "valid_seen"}, "no games of valid_seen"),
    ({"held_out": "valid_seen"}, "no games of valid_seen"),
    ({"games": __file__}, "not a file of games"),
])  # fmt: skip
def test_games_that_are_not_there(options, message, monkeypatch, capsys):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(GameError, match=message):
        make(**options)
    with pytest.raises(SystemExit) as exit_:
        common.make_envs("alfworld", 1, json.dumps({"games": MADE, **options}))
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert exit_.value.code == 2 and re.search(message, error)


def test_a_file_of_games_may_be_spelt_otherwise(tmp_path):
    with lzma.open(MADE, "rt") as file:
        lines = [json.loads(line) for line in file]
    with lzma.open(tmp_path / "games.jsonl.xz", "wt") as file:
        file.writelines(json.dumps(dict(reversed(row.items()))) + "\n" for row in lines)
    assert Games(tmp_path / "games.jsonl.xz", "train").paths == SPLITS["train"].paths


def test_a_truncated_file_of_games(tmp_path):
    whole = Path(MADE).read_bytes()
    for size in (0, 10, 1000, len(whole) - 20):
        (tmp_path / f"{size}.jsonl.xz").write_bytes(whole[:size])
        with pytest.raises(GameError, match="not a file of games"):
            make(games=str(tmp_path / f"{size}.jsonl.xz"))


# ---- made games, and the stock engine ------------------------------------------------------------


@make_games
def test_made_games(tmp_path):
    """Same seed, same games; each can be won; held-out layouts and targets are never trained on."""
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        command = [
            sys.executable,
            "-m",
            "real_envs.alfworld",
            "--make-games",
            "30",
            "--seed",
            str(seed),
        ]
        subprocess.run([*command, str(tmp_path / folder)], cwd=HOUSE, check=True)
    trees = [
        {
            p.relative_to(tmp_path / f): p.read_bytes()
            for p in (tmp_path / f).rglob("*.*")
            if p.is_file()
        }
        for f in "abc"
    ]
    assert trees[0] == trees[1] != trees[2] and len(trees[0]) == 3 * 36
    layouts, targets = {}, {}
    for split in ("train", "valid_unseen"):
        games = Games(str(tmp_path / "a"), split)
        assert {games.load(i)[1].type for i in range(len(games))} == {*TYPES}
        files = [tmp_path / "a" / "json_2.1.1" / p / "traj_data.json" for p in games.paths]
        layouts[split] = {json.loads(f.read_text())["scene"]["layout"] for f in files}
        targets[split] = {tuple(p.split("/")[1].split("-")[1:4]) for p in games.paths}
        for i in range(len(games)):
            game, task = games.load(i)
            assert 2 < task.distance(game.start) < 20
    assert not layouts["train"] & layouts["valid_unseen"]
    assert not targets["train"] & targets["valid_unseen"]
    again = subprocess.run(
        [*command, str(tmp_path / "a")], cwd=HOUSE, capture_output=True, text=True
    )
    assert again.returncode == 2 and "nothing is overwritten" in again.stderr


# ---- the small policy ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_policy():
    return common.load_policy(common.Args(env="alfworld", env_options=json.dumps({"games": MADE})))


@pytest.mark.parametrize("games", [MADE, pytest.param(REAL, marks=real_games)])
@pytest.mark.parametrize("seed", [0, 1_000_000])
def test_the_small_policy_can_say_what_can_be_done(small_policy, games, seed):
    """Every command of a random play comes back from its tokens, no word is unknown, and the list
    of commands in the observation is not read."""
    tokenizer, rng = small_policy.tokenizer, random.Random(seed)
    env, plain = make(games=games), make(games=games, commands=False)
    (text, info), (short, _) = env.reset(seed=seed), plain.reset(seed=seed)
    for _ in range(15):
        ids = small_policy.encode(text)
        assert ids == small_policy.encode(short) and tokenizer.unk_token_id not in ids
        for command in info["actions"]:
            assert tokenizer.decode(small_policy.encode(command)) == command
        command = choose(rng, info["actions"])
        (text, *_, info), (short, *_) = env.step(command), plain.step(command)


@real_games
def test_the_small_policy_plays_badly_but_not_hopelessly(small_policy):
    """On real games of the held-out split; most of what it does is possible."""
    envs = common.make_envs("alfworld", 64, json.dumps({"games": REAL}))
    played = common.rollout(small_policy, envs, range(1_000_000, 1_000_064))
    steps = [step for episode in played for step in episode.steps]
    assert 0.05 <= sum(episode.success for episode in played) / 64 <= 0.35
    assert sum(step.valid for step in steps) >= 0.8 * len(steps)


@pytest.mark.skipif(
    not (importlib.util.find_spec("alfworld") and importlib.util.find_spec("textworld")),
    reason="needs the stock engine: pip install alfworld==0.4.2 (compiles a planner)",
)
def test_against_the_stock_engine():
    """One made game of each type, every state of a shortest way and of 15 random commands."""
    command = [sys.executable, "tests/compare_alfworld.py", "--games", MADE, "--steps", "15"]
    result = subprocess.run(command, cwd=HOUSE, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "'games': 6" in result.stdout and "'states_that_differ': 0" in result.stdout
    assert all(f" {kind}-" in result.stdout for kind in TYPES)
