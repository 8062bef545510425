"""ALFWorld's games: where they are found, in which order, and how to make some with no download.

Made games take domain, grammar and tables from the files of `pip install --no-deps alfworld==0.4.2`
(nothing of it is run but its tables) and have the layout of the official data, so that the stock
package loads them too. Kinds of rooms and targets are split between training and held-out games by
a hash, so that no held-out game shares its furniture or its target with a training game.
"""

import functools
import hashlib
import importlib.util
import json
import lzma
import random
import re
import sys
import zlib
from pathlib import Path

from real_envs.alfworld_engine import Game, GameError
from real_envs.alfworld_tasks import CHANGES, Task

SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
HOW = (
    "set ALFWORLD_DATA, or make games: pip install --no-deps alfworld==0.4.2; "
    "python -m real_envs.alfworld --make-games 200 --seed 1 DIR; export ALFWORLD_DATA=DIR"
)
BROKEN = ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError


class Games:
    """The games of a split, in the order of their paths; `digest` is a hash of that order.

    Args: source: a folder with json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl, or a file .jsonl.xz whose
        first line holds domain and grammar, and each further one path, task and problem of a game.
    """

    def __init__(self, source, split):
        if not source:
            raise GameError(f"where are the games? {HOW}")
        source = Path(source).expanduser()
        if split not in SPLITS:
            raise GameError(f"there is no split {split!r}, only {', '.join(SPLITS)}")
        if not source.exists():
            raise GameError(f"there is no {source}: {HOW}")
        self.folder, self.packed = source / "json_2.1.1", {}
        self.paths = self._list(split) if source.is_dir() else self._unpack(source, split)
        if not self.paths:
            raise GameError(f"no games of {split} in {source}: {HOW}")
        self.digest = hashlib.sha256("\n".join(self.paths).encode()).hexdigest()[:12]
        print(f"ALFWorld {split}: {len(self.paths)} games, order {self.digest}", file=sys.stderr)

    def _list(self, split):
        """As stock: no games about sliced or movable things, and only what is marked solvable."""
        games = {
            file.parent.relative_to(self.folder).as_posix(): file
            for file in self.folder.glob(f"{split}/*/*/game.tw-pddl")
        }
        plain = sorted(p for p in games if "movable" not in p and "Sliced" not in p)
        return [p for p in plain if re.search(rb'"solvable":\s*true', games[p].read_bytes())]

    def _unpack(self, file, split):
        try:
            with lzma.open(file, "rt") as lines:
                self.shared = json.loads(next(lines))
                for line in lines:
                    begins = re.match(r'{"path": "([^"]+)"', line)  # most are never parsed
                    path = begins[1] if begins else json.loads(line)["path"]
                    if path.startswith(f"{split}/"):
                        self.packed[path] = zlib.compress(line.encode(), 1)
        except (*BROKEN, EOFError, lzma.LZMAError, StopIteration) as error:
            raise GameError(f"{file} is not a file of games: {error!r}") from None
        return sorted(self.packed)

    def __len__(self):
        return len(self.paths)

    @functools.lru_cache(128)  # noqa: B019  (the games live as long as the process)
    def load(self, number):
        """(Game, Task) of the game with that number, read once for all environments."""
        if not 0 <= number < len(self):
            raise GameError(f"no game {number}: the split has {len(self)}, from 0 on")
        path = self.paths[number]
        try:
            text = self.read(path)
        except BROKEN as error:
            raise GameError(f"{path} cannot be read: {error!r}") from None
        return read_game(text, path)

    def read(self, path):
        if not self.packed:
            return (self.folder / path / "game.tw-pddl").read_bytes()
        row = json.loads(zlib.decompress(self.packed[path]))
        grammar = self.shared["grammar"].replace("UNKNOWN GOAL", row["task"])
        game = {**self.shared, "grammar": grammar, "pddl_problem": row["problem"]}
        return json.dumps({**game, "solvable": True, "walkthrough": row.get("walkthrough")})


find_games = functools.cache(Games)  # one list of games for all environments of a process


def read_game(text, name):
    """(Game, Task) of a game file's text; whatever is wrong with it becomes one GameError."""
    try:
        game = Game(json.loads(text))
        return game, Task(game)
    except GameError as error:
        raise GameError(f"{name}: {error}") from None
    except BROKEN as error:
        raise GameError(f"{name}: a broken game file: {error!r}") from None


# ---- making games --------------------------------------------------------------------------------

ROOMS = {  # furniture with its smallest and largest number, and what lies about
    "Kitchen": (
        "Fridge 1 1, Microwave 1 1, SinkBasin 1 1, CounterTop 1 3, Cabinet 2 6, Drawer 1 5, "
        "DiningTable 0 1, GarbageCan 0 1, StoveBurner 0 4, CoffeeMachine 0 1, Shelf 0 3",
        "Apple Potato Tomato Egg Lettuce Bread Mug Plate Bowl Cup Pan Pot Knife ButterKnife Fork "
        "Spoon Spatula SaltShaker PepperShaker DishSponge SoapBottle",
    ),
    "Bedroom": (
        "Bed 1 1, Desk 1 2, SideTable 0 2, Drawer 1 6, Shelf 0 4, GarbageCan 0 1, Dresser 0 1, "
        "Safe 0 1, ArmChair 0 1, LaundryHamper 0 1",
        "DeskLamp Book Pen Pencil CellPhone KeyChain CreditCard CD AlarmClock Mug Bowl Pillow",
    ),
    "LivingRoom": (
        "Sofa 1 1, CoffeeTable 1 1, SideTable 1 3, ArmChair 0 2, Drawer 0 4, Shelf 0 3, "
        "GarbageCan 0 1, TVStand 0 1, DiningTable 0 1, Cabinet 0 4",
        "FloorLamp Book Newspaper RemoteControl KeyChain CreditCard Laptop Vase Statue Box Watch "
        "CellPhone TissueBox Pillow",
    ),
    "Bathroom": (
        "SinkBasin 1 2, Toilet 1 1, CounterTop 1 1, Cabinet 0 4, Drawer 0 3, GarbageCan 0 1, "
        "Shelf 0 2, BathtubBasin 0 1, Cart 0 1",
        "Candle Cloth SoapBar SoapBottle SprayBottle ToiletPaper TissueBox DishSponge",
    ),
}
TYPES = [
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]


def package():
    """(tables, goals, domain, grammar) of the installed package; its other parts are not run."""
    spec = importlib.util.find_spec("alfworld")
    if spec is None:
        raise GameError("making games needs: pip install --no-deps alfworld==0.4.2")
    data = Path(spec.submodule_search_locations[0], "data")
    modules = [importlib.import_module(f"alfworld.gen.{m}") for m in ("constants", "goal_library")]
    files = [(data / name).read_text() for name in ("alfred.pddl", "alfred.twl2")]
    return modules[0], modules[1].gdict, *files


def held_out(name):
    """Is it a layout or a target of held-out games? A fifth is, the same for all seeds.

    >>> held_out("Mug on Desk"), held_out("Plate on Shelf")
    (False, True)
    """
    return hashlib.sha256(name.encode()).digest()[0] % 5 == 0


def draw_game(rng, kind, is_held_out, tables):
    """One game's (room, furniture, objects, thing, target), or None if the draw makes no sense."""
    rooms = sorted(tables.GOALS_VALID[kind])
    room = rng.choice(rooms)
    furniture, things = ROOMS[room]
    ranges = [entry.split() for entry in furniture.split(", ")]
    counts = {name: rng.randint(int(low), int(high)) for name, low, high in ranges}
    layout = " ".join([room, *(f"{n}{name}" for name, n in counts.items())])
    lamp = next((x for x in things.split() if x in LAMPS), None)
    able = tables.VAL_ACTION_OBJECTS.get(CHANGES[kind][1].capitalize()) if kind in CHANGES else None
    thing = rng.choice(
        [x for x in things.split() if x not in LAMPS and (not able or x in able)] or [""]
    )
    furnished = [name for name, n in counts.items() if n]
    light = kind == "look_at_obj_in_light"
    fit = [r for r in furnished if thing in tables.VAL_RECEPTACLE_OBJECTS[r]]
    target = lamp if light else rng.choice(fit or [""])
    apart = [r for r in fit if r != target]  # nothing lies in its target from the start
    if not (thing and target and apart):
        return None
    if {held_out(layout), held_out(f"{thing} on {target}")} != {is_held_out}:
        return None
    objects = [x for x in things.split() for _ in range(rng.randint(0, 2))] + [thing]
    objects += [thing] if kind == "pick_two_obj_and_place" else []
    objects = [x for x in objects if x not in LAMPS] + ([lamp] if light else [])
    where = []
    for x in objects:
        places = [r for r in furnished if x in tables.VAL_RECEPTACLE_OBJECTS[r]]
        places = (
            apart if x == thing else [r for r in furnished if r in STANDS] if x in LAMPS else places
        )
        if places:
            place = rng.choice(places)
            where.append((x, f"{place}_{rng.randint(1, counts[place])}"))
    return layout, counts, where, thing, target


LAMPS, STANDS = ("DeskLamp", "FloorLamp"), ("Desk", "SideTable")


def write_problem(counts, where, goal, tables):
    """The PDDL problem of a drawn game."""
    places = [(kind, f"{kind}_{k}") for kind, n in counts.items() for k in range(1, n + 1)]
    whole = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}  # as in the official data
    ids = {
        name: f"{whole[kind]}_bar_{name[-1]}_bar_{kind}"
        if kind in whole
        else name.replace("_", "_bar_")
        for kind, name in places
    }
    objects = [(kind, f"{kind}_bar_{k:02}", place) for k, (kind, place) in enumerate(where)]
    kinds = sorted({kind for kind, *_ in objects})
    rooms = sorted({kind for kind, _ in places})
    abilities = {name.lower(): able for name, able in tables.VAL_ACTION_OBJECTS.items()}
    facts = [f"receptacleType {ids[name]} {kind}Type" for kind, name in places]
    facts += [f"receptacleAtLocation {ids[name]} loc_bar_{k}" for k, (_, name) in enumerate(places)]
    facts += [f"openable {ids[n]}" for kind, n in places if kind in tables.OPENABLE_CLASS_LIST]
    facts += [
        f"canContain {r}Type {kind}Type"
        for r in rooms
        for kind in kinds
        if kind in tables.VAL_RECEPTACLE_OBJECTS[r]
    ]
    order = [name for _, name in places]
    for kind, o, place in objects:
        facts += [f"objectType {o} {kind}Type", f"inReceptacle {o} {ids[place]}"]
        facts += [f"objectAtLocation {o} loc_bar_{order.index(place)}"]
        facts += [] if kind in LAMPS else [f"pickupable {o}"]
        facts += [f"{ability} {o}" for ability, able in abilities.items() if kind in able]
    types = [f"{kind}Type - otype" for kind in kinds] + [f"{kind}Type - rtype" for kind in rooms]
    types += [f"{o} - object" for _, o, _ in objects] + [f"{i} - receptacle" for i in ids.values()]
    types += [f"loc_bar_{k} - location" for k in range(len(places))]
    lines = ["(define (problem made)", "(:domain alfred)", "(:objects agent1 - agent"]
    lines += ["loc_bar_start - location", *types, ")", "(:init (atLocation agent1 loc_bar_start)"]
    return "\n".join([*lines, *(f"({fact})" for fact in facts), "(= (total-cost) 0)", ")", goal])


def make_game(rng, kind, is_held_out):
    """One solvable game: (folder name, game file as a dict, trajectory file as a dict)."""
    tables, goals, domain, grammar = package()
    while True:
        drawn = draw_game(rng, kind, is_held_out, tables)
        if drawn is None:
            continue
        layout, counts, where, thing, target = drawn
        names = {"obj": thing, "recep": target, "toggle": target, "mrecep": ""}
        goal = goals[kind]["pddl"].replace("#", "-").format(**names)
        words = {key: name.lower() for key, name in names.items()}
        task = rng.choice(goals[kind]["templates"]).format(**words)
        game = {
            "pddl_domain": domain,
            "grammar": grammar.replace("UNKNOWN GOAL", task),
            "pddl_problem": write_problem(counts, where, goal, tables),
            "solvable": True,
            "walkthrough": None,
        }
        try:
            Task(Game(game))
        except GameError as error:
            if "cannot be reached" not in str(error):
                raise
            continue
        light = kind == "look_at_obj_in_light"
        parameters = {"object_target": thing, "parent_target": "" if light else target}
        parameters |= {"toggle_target": target if light else "", "mrecep_target": ""}
        trajectory = {
            "task_type": kind,
            "turk_annotations": {"anns": []},
            "scene": {"layout": layout},
        }
        trajectory |= {"pddl_params": parameters | {"object_sliced": False}}
        return f"{kind}-{thing}-None-{target}", game, trajectory


def make_games(count, seed, folder):
    """Writes `count` training games and a fifth as many held-out ones, six at least."""
    root = Path(folder, "json_2.1.1")
    if root.exists():
        raise GameError(f"{root} is there already, and nothing is overwritten")
    for split, n in (("train", count), ("valid_unseen", max(6, count // 5))):
        for k in range(n):
            rng = random.Random(f"{seed} {split} {k}")
            name, game, trajectory = make_game(rng, TYPES[k % 6], split != "train")
            trial = root / split / f"{name}-{k}" / f"trial_{seed}_{k}"
            trial.mkdir(parents=True)
            (trial / "game.tw-pddl").write_text(json.dumps(game))
            (trial / "traj_data.json").write_text(json.dumps(trajectory | {"task_id": trial.name}))
            (trial / "initial_state.pddl").write_text(game["pddl_problem"])
    return root
