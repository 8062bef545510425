"""Workshop: make the product that was ordered, one tool after the other, by a hidden recipe.

    red chair    cut drill glue + sand paint        A product is a body in a finish, and so is its
    red table    sand cut glue  + sand paint        recipe: tool transitions recur from product to
    dark chair   cut drill glue + sand weld paint   product, as in the plans of one trade.

The right tool advances the piece. The one after it, too early, spoils the piece, and all others
waste the turn. Reward 1 for a finished product, else 0; 14 turns.
"""

from toy_envs.gridworld import GridWorld, chain

BODIES = {
    "chair": "cut drill glue",
    "stool": "cut drill bend",
    "table": "sand cut glue",
    "bench": "sand cut weld",
    "frame": "weld bend drill",
    "crate": "weld bend cut",
    "shelf": "drill polish glue",
    "lamp": "drill polish bend",
}
FINISHES = {
    "red": "sand paint",
    "blue": "polish paint",
    "dark": "sand weld paint",
    "bright": "sand paint polish",
    "smooth": "polish sand polish",
    "strong": "sand glue bend",
}


class Workshop(GridWorld):
    """State: tools of the recipe that were used so far, or None for a spoiled piece."""

    actions = ("cut", "drill", "sand", "glue", "paint", "bend", "weld", "polish")
    instructions = (
        "You make one product in a workshop: its body first, then its finish. Every product has "
        "its sequence of tools; a wrong tool wastes a turn or spoils the piece. Each turn, answer "
        "with one of these tools and nothing else: " + ", ".join(actions) + "."
    )

    def layout(self):
        self.product = " ".join(self.np_random.choice(list(part)) for part in (FINISHES, BODIES))
        finish, body = self.product.split()
        self.recipe = f"{BODIES[body]} {FINISHES[finish]}".split()
        self.prerequisites = chain(*(f"tool {i + 1} is used" for i in range(len(self.recipe))))
        return 0

    def transition(self, state, action):
        if action == self.recipe[state]:
            return state + 1
        return None if action in self.recipe[state + 1 : state + 2] else state

    def outcome(self, state):
        return 0.0 if state is None else 1.0 if state == len(self.recipe) else None

    def state_key(self):
        return self.product, self.state

    def facts(self):
        return list(self.prerequisites)[: self.state or 0]

    def info(self, action=None):
        info = super().info(action)
        matched = (self.state or 0) / len(self.recipe)
        return info | {"tool": action if info["valid"] else None, "matched": matched}

    def describe(self):
        done = "spoiled" if self.state is None else self.state and str(self.state)
        return f"{self.product} {done or ''}".strip()
