"""What ALFWorld's six task types ask for: subgoals, what they rest on, and the way that is left."""

import itertools
import math
from collections import Counter, defaultdict

from real_envs.alfworld_reading import EMPTY, GameError

CHANGES = {  # of the thing: its verb's result, what can be changed, and where
    "pick_clean_then_place_in_recep": ("isclean", "cleanable", ("sinktype", "sinkbasintype")),
    "pick_heat_then_place_in_recep": ("ishot", "heatable", ("microwavetype",)),
    "pick_cool_then_place_in_recep": ("iscool", "coolable", ("fridgetype",)),
}
PLACE = "inreceptacle ?o ?r, objecttype ?o *, receptacletype ?r *"
GOALS = {  # the literals of the goal, with ALFWorld's names for its variables; *: a type
    "pick_and_place_simple": PLACE,
    "pick_two_obj_and_place": f"not= ?o1 ?o2, inreceptacle ?o1 ?r, objecttype ?o1 *, "
    f"{PLACE.replace('?o', '?o2')}",
    "look_at_obj_in_light": "atlocation ?a ?l, holds ?a ?o, inreceptacle ?ot ?r, istoggled ?ot, "
    "objecttype ?o *, objecttype ?ot *, receptacleatlocation ?r ?l, toggleable ?ot",
} | {name: f"{PLACE}, {change} ?o, {able} ?o" for name, (change, able, _) in CHANGES.items()}


def kind_of(goal):
    """The type of task whose goal it is, or None."""
    variables = {a for x in goal for a in x.arguments if a[0] == "?"}
    names = {a: a.partition("@")[0] for a in variables}  # a game numbers them, too
    things = [name for name in names.values() if name != "?a"]  # of agents there is but one
    if len(things) > len({*things}):
        return None
    literals = set()
    for x in goal:
        sign = "" if x.positive else "not"
        literals.add(" ".join([sign + x.predicate, *(names.get(a, "*") for a in x.arguments)]))
    return next((kind for kind in GOALS if {*GOALS[kind].split(", ")} == literals), None)


class Task:
    """The task of one game: its type, `prerequisites` {subgoal: (subgoal, ...)}, and `distance`.

    Subgoals are such that no good move breaks one: what lies where it should counts as taken, too.
    """

    def __init__(self, game):
        if len(game.goals) != 1 or len(game.start.get("atlocation", ())) != 1:
            raise GameError("needs one goal, and the agent in one place")
        goal, constants = sorted(set(game.goals[0])), game.constants
        self.type = kind_of(goal)
        if self.type is None:
            raise GameError("its goal is none of ALFWorld's six")

        def kinds(predicate):
            return {x.arguments[0]: x.arguments[1] for x in goal if x.predicate == predicate}

        change, able, tools = CHANGES.get(self.type, (None, None, ()))
        self.change, self.two = change, self.type == "pick_two_obj_and_place"
        things, self.lamp_kind = kinds("objecttype"), None
        if self.type == "look_at_obj_in_light":
            self.lamp_kind = things.pop(next(x.arguments[0] for x in goal if x[1] == "istoggled"))
        if len({*things.values()}) != 1:
            raise GameError("its goal asks for two things of different kinds")
        self.thing_kind = next(iter(things.values()))
        (target,) = {*kinds("receptacletype").values()} or {None}
        self.object_kind = dict(constants.get("objecttype", ()))
        self.place_kind = dict(constants.get("receptacletype", ()))
        fits = constants.get("cancontain", frozenset())
        self.spot = dict(constants.get("receptacleatlocation", ()))
        at = Counter(self.spot.values())
        self.shared_spots = {r for r, place in self.spot.items() if at[place] > 1}
        self.openable = {r for (r,) in constants.get("openable", ())}
        self.portable = {o for (o,) in constants.get("pickupable", ())}
        can = {o for (o,) in constants.get(able, ())}
        self.things = [
            o
            for o, k in self.object_kind.items()
            if k == self.thing_kind and (not able or o in can)
        ]
        self.rooms = {  # where an object can be put
            o: [r for r in self.spot if (self.place_kind.get(r), kind) in fits]
            for o, kind in self.object_kind.items()
        }
        lamps = {o for (o,) in constants.get("toggleable", ())}
        self.lamps = [o for o in lamps if self.object_kind.get(o) == self.lamp_kind]
        if self.portable & {*self.lamps}:
            raise GameError("a lamp that can be carried is not supported")
        self.targets = [r for r, k in self.place_kind.items() if k == target]
        self.tools = [r for r, k in self.place_kind.items() if k in tools and r in self.spot]
        self.prerequisites = self._prerequisites()
        if math.isinf(self.distance(game.start)):
            raise GameError("its goal cannot be reached")

    def _prerequisites(self):
        thing = self.thing_kind.removesuffix("type")
        found, taken, placed = (f"a {thing} is {x}" for x in ("found", "taken", "in place"))
        if self.two:
            found_2, taken_2, placed_2 = (
                x.replace("a ", "another ", 1) for x in (found, taken, placed)
            )
            return {found: (), taken: (found,), placed: (taken,), found_2: (found,),
                    taken_2: (found_2, placed), placed_2: (taken_2,)}  # fmt: skip
        if self.lamp_kind:
            lamp, under = self.lamp_kind.removesuffix("type"), f"a {thing} is under the light"
            seen, lit = f"a {lamp} is found", f"a {lamp} is on"
            return {found: (), taken: (found,), seen: (), lit: (seen,), under: (taken, lit)}
        if self.change:
            changed = f"a {thing} is {self.change.removeprefix('is')}"
            return {found: (), taken: (found,), changed: (taken,), placed: (changed,)}
        return {found: (), taken: (found,), placed: (taken,)}

    def subgoals(self, state, seen):
        """The subgoals that hold in a state; seen: ids of what the player has read of by now."""
        things = {*self.things}
        held = things & {o for _, o in state["holds"]}
        ready = {o for o in things if not self.change or (o,) in state[self.change]}
        inside = [{o for o, r in state["inreceptacle"] if r == t} & ready for t in self.targets]
        found, placed = len(seen & things), max(map(len, inside), default=0)
        taken = max([len(some | held) for some in inside] or [len(held)])
        true = [found > 0, taken > 0, placed > 0]
        if self.two:
            true += [found > 1, taken > 1, placed > 1]
        elif self.lamp_kind:
            lit = {o for o in self.lamps if (o,) in state["istoggled"]}
            here = {place for _, place in state["atlocation"]}
            near = {o for o, r in state["inreceptacle"] if self.spot.get(r) in here}
            true[2:] = [bool(seen & {*self.lamps}), bool(lit), bool(held and lit & near)]
        elif self.change:
            true.insert(2, bool(ready))
        return {name for name, holds in zip(self.prerequisites, true) if holds}

    def distance(self, state):
        """Fewest actions from a state to success, inf if none lead there.

        A shortest way is made of few stages (put down what is in the hand, take, change, put), and
        each of going there, opening what is shut, and one action: all their orders and places are
        tried. A stage is (actions so far, where the agent is, what is open) at its end. The tests
        compare it with plain search.
        """
        ((_, here),) = state["atlocation"]
        held = next((o for _, o in state["holds"]), None)
        lies = defaultdict(list)  # some things lie in two places
        for o, r in state["inreceptacle"]:
            if r in self.spot:
                lies[o].append(r)
        start = 0, here, frozenset(r for (r,) in state["opened"])

        def visit(stage, r, inside=True):  # to take or put something, what is shut must be opened
            cost, at, is_open = stage
            shut = {r} & self.openable - is_open if inside else EMPTY
            return cost + (at != self.spot[r]) + len(shut), self.spot[r], is_open | shut

        def act(stage):
            return stage[0] + 1, *stage[1:]

        def take(stage, o, hand):
            """Ways to have o in the hand: pairs (stage, the place that it was taken from)."""
            if hand == o:
                return [(stage, None)]
            free = [stage] if hand is None else [act(visit(stage, r)) for r in self.rooms[hand]]
            return [(act(visit(s, r)), r) for s in free for r in lies[o] if o in self.portable]

        costs = [math.inf]
        for lamp, r in [(m, r) for m in self.lamps for r in lies[m]]:
            for o in self.things:
                taken = [stage for stage, _ in take(start, o, held)]
                if (lamp,) in state["istoggled"]:
                    ends = [visit(s, r, False) for s in taken]
                else:  # the lamp last, or the lamp first and back to it
                    ends = [act(visit(s, r, False)) for s in taken]
                    lit = act(visit(start, r, False))
                    ends += [visit(s, r, False) for s, _ in take(lit, o, held)]
                costs += [cost for cost, *_ in ends]
        ready = {o for o in self.things if not self.change or (o,) in state[self.change]}
        for target in self.targets:
            done = {o for o in ready if (o, target) in state["inreceptacle"]}
            others = [o for o in self.things if o not in done]
            for chain in itertools.permutations(others, max(0, 1 + self.two - len(done))):
                stages, hand = {start}, held
                for o in chain:
                    ways, hand = [way for s in stages for way in take(s, o, hand)], None
                    if o not in ready:
                        ways = [(act(visit(s, t, False)), r) for s, r in ways for t in self.tools]
                    there = [s for s, r in ways if target in lies[o] and r != target]  # still
                    put = [s for s, _ in ways if target in self.rooms[o]]
                    stages = {*there, *(act(visit(s, target)) for s in put)}
                costs += [cost for cost, *_ in stages]
        return min(costs)
