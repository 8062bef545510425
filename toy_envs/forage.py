"""Forage: find one of every kind that is hidden on the map, then answer.

f . o . .     `look` names what lies in the agent's cell and in the four beside it; nothing else
. . o A .     shows where things are. Two common kinds (o, x) have three copies each near the
. x x o .     start, two rare ones (f, m) a single one far away. `answer` ends the episode with the
. . x . m     F1 of the kinds seen so far against all kinds on the map; no answer within 40 turns is
. . . . .     worth 0. So it is tempting to answer with the common kinds alone.
"""

from toy_envs.gridworld import DIRECTIONS, GridWorld, bearing

KINDS = ["apple", "berry", "cherry", "fig", "grape", "lemon", "melon", "olive"]


def apart(a, b):
    """Steps between two cells."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


class Forage(GridWorld):
    """State: (agent's cell, kinds seen, cells looked at, answered?). Cells are (x, y).

    Args:
        size: cells along each side of the map (at least 4).
    """

    actions = (*DIRECTIONS, "look", "answer")
    instructions = (
        "You search a map for hidden fruit of four kinds. Look names what lies in your cell and "
        "beside it. When all kinds are found, answer. Each turn, say one of these actions and "
        "nothing else: " + ", ".join(actions) + "."
    )

    def __init__(self, size=5):
        super().__init__()
        if size < 4:
            raise ValueError(f"Forage needs a size of at least 4, not {size}")
        self.size, self.cells = size, [(x, y) for x in range(size) for y in range(size)]

    def layout(self):
        pick = self.np_random.choice
        start = self.cells[self.np_random.integers(len(self.cells))]
        nearest = sorted(self.cells, key=lambda cell: apart(cell, start))
        self.gold = tuple(pick(KINDS, 4, replace=False).tolist())
        self.finds = {}
        for copy, i in enumerate(pick(8, 6, replace=False)):
            self.finds[nearest[1 + i]] = self.gold[copy % 2]
        for rare, i in zip(self.gold[2:], pick(len(nearest) // 3, 2, replace=False)):
            self.finds[nearest[-1 - i]] = rare
        self.prerequisites = {f"{kind} is found": () for kind in self.gold}
        self.response = None
        return start, frozenset(), frozenset(), False

    def sight(self, cell):
        """The cell and those beside it."""
        return frozenset(other for other in self.cells if apart(cell, other) <= 1)

    def transition(self, state, action):
        agent, seen, looked, _ = state
        if action == "answer":
            return agent, seen, looked, True
        if action == "look":
            sight = self.sight(agent)
            new = {self.finds[cell] for cell in sight if cell in self.finds}
            return agent, seen | new, looked | sight, False
        ahead = tuple(a + d for a, d in zip(agent, DIRECTIONS[action]))
        return (ahead if ahead in self.cells else agent), seen, looked, False

    def step(self, action):
        in_sight = [cell for cell in sorted(self.sight(self.state[0])) if cell in self.finds]
        self.response = [self.finds[cell] for cell in in_sight] if action == "look" else None
        return super().step(action)

    def distance(self, state=None):
        """As for every task. Where it has looked is of no matter to the truth, and left out."""
        agent, seen, _, answered = state or self.state
        return super().distance((agent, seen, frozenset(self.cells), answered))

    def outcome(self, state):
        _, seen, _, answered = state
        return 2 * len(seen) / (len(seen) + len(self.gold)) if answered else None

    def facts(self):
        return [f"{kind} is found" for kind in self.state[1]]

    def info(self, action=None):
        found = {"found": tuple(self.response)} if action == "look" else {}
        return super().info(action) | {"gold": self.gold} | found

    def describe(self):
        """The response to a look, all kinds so far, and the way to the nearest cell not seen."""
        agent, seen, looked, _ = self.state
        found = [] if self.response is None else [f"found {' '.join(self.response) or 'nothing'}"]
        new = min(
            set(self.cells) - looked, key=lambda cell: (apart(agent, cell), cell), default=None
        )
        way = bearing(agent, new) if new else "nowhere"
        return " . ".join([*found, f"seen {' '.join(sorted(seen)) or 'nothing'}", f"new {way}"])
