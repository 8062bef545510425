"""ALFWorld's text games in plain Python: the same text, commands, facts and wins as textworld's.

A game file (game.tw-pddl) holds a PDDL domain, a PDDL problem and a text grammar. The stock engine
translates the PDDL anew at every reset and parses the grammar anew for every command of every step.
Here both are read once: each precondition and each condition of the grammar becomes a `Query`, a
short list of joins over the facts that hold. A state is a dict {predicate: frozenset of argument
tuples} that is never changed in place: a snapshot is the state itself. A game that is broken, or
outside the supported fragment, raises GameError. What is copied of the stock engine's accidents is
marked "as stock"; tests/compare_alfworld.py compares every state with it.
"""

import json
import re
from collections import defaultdict
from typing import NamedTuple

from real_envs.alfworld_reading import (
    EMPTY,
    GameError,
    Literal,
    Query,
    name_entities,
    read_condition,
    read_effects,
    read_lisp,
    read_query,
    read_template,
    read_typed,
)


class Operation(NamedTuple):
    """An action with its arguments: what the player types, and what it changes."""

    command: str
    action: str
    bindings: dict  # {variable: id}
    changes: list  # of Literals that become true


class Rules:
    """What games share: the actions of a domain and the rules of a grammar."""

    def __init__(self, domain, grammar, sizes):
        """sizes: {predicate: number of facts} of a typical game, to plan queries with."""
        sections = [part for part in read_lisp(domain)[1:] if isinstance(part, list)]
        self.sizes, self.parameters, self.effects, self.queries = sizes, {}, {}, {}
        self.types = {"object": "object"}
        self.arity = {"=": 2}
        for kind, *parts in sections:
            if kind == ":types":
                self.types |= read_typed(parts)
            elif kind == ":predicates":
                self.arity |= {name: len(read_typed(rest)) for name, *rest in parts}
            elif kind not in ("domain", ":requirements", ":functions", ":action"):
                raise GameError(f"PDDL {kind} is not supported")
        if {*self.types.values()} - {"object"}:
            raise GameError("PDDL types below other types are not supported")
        preconditions = []
        for _, name, *parts in (s for s in sections if s[0] == ":action"):
            part = dict(zip(parts[::2], parts[1::2]))
            self.parameters[name] = read_typed(part[":parameters"])
            self.effects[name] = read_effects(part[":effect"])
            for effect, _ in self.effects[name]:
                self.check(effect)
            for literals in self.conditions(part[":precondition"], self.parameters[name]):
                preconditions.append((name, literals))
        self.fluents = {e.predicate for effects in self.effects.values() for e, _ in effects}
        self.unsure = {
            e.predicate for effects in self.effects.values() for e, when in effects if when
        }
        if self.unsure & {x.predicate for _, literals in preconditions for x in literals}:
            raise GameError("a precondition reads what a conditional effect writes")
        self.actions = [(name, x, self.query(x, (), False)) for name, x in preconditions]
        self.commands, self.feedback, self.texts, action = {}, {}, defaultdict(list), None
        entry = r'action\s+(\w+)\s*\{|(\w+)\s*::\s*(?:"""(.*?)"""|"(.*?)")\s*;'
        for m in re.finditer(entry, grammar, re.DOTALL):
            action = m[1].lower() if m[1] else action
            if m[2] in ("template", "feedback"):
                {"template": self.commands, "feedback": self.feedback}[m[2]][action] = m[4]
            elif m[2] == "grammar":
                lines = [line for line in m[3].split("\n") if not line.lstrip().startswith("#")]
                for name, rules in json.loads("\n".join(lines)).items():
                    self.texts[name] += [(read_query(r.get("condition")), r["rhs"]) for r in rules]
        if missing := self.parameters.keys() - (self.commands.keys() & self.feedback.keys()):
            raise GameError(f"the grammar has no text for {', '.join(sorted(missing))}")
        conditions = [query for rules in self.texts.values() for query, _ in rules]
        inner = [
            p[3] for rules in self.texts.values() for _, text in rules for p in self.parts(text)
        ]
        asked = [literals for _, literals, _ in self.actions] + conditions + inner
        self.read = {literal.predicate for literals in asked for literal in literals}

    def parts(self, text):
        """The parts of a template; of one that is broken none, as it may never be shown."""
        try:
            return read_template(text)
        except GameError:
            return []

    def changes(self, predicate):
        return predicate.removeprefix("not_") in self.fluents

    def check(self, literal):
        if self.arity.get(literal.predicate) != len(literal.arguments):
            raise GameError(f"{literal.predicate} {literal.arguments} is not in the PDDL domain")

    def conditions(self, condition, parameters):
        """The alternatives of a condition. Types are facts "- agent(x)", asked for only where no
        literal binds a parameter. As stock: nothing is of an unknown type (`location,`, say)."""
        types = dict(parameters)
        for literals in read_condition(condition, types):
            for literal in literals:
                self.check(literal)
            names = {a for literal in literals for a in literal.arguments}
            bound = {a for literal in literals for a in literal.arguments if literal.positive}
            if all(types.get(a, "object") in self.types for a in names):
                free = [v for v in parameters if v not in bound]
                yield literals + tuple(Literal(True, "- " + types[v], (v,)) for v in free)

    def query(self, literals, given, distinct):
        key = literals, given, distinct
        if key not in self.queries:
            self.queries[key] = Query(self, *key)
        return self.queries[key]


class Game:
    """One game, read once, and all that follows from a state alone.

    Args: data: a dict with the texts "pddl_domain", "pddl_problem" and "grammar".
    """

    known_rules = {}  # (domain, grammar without the task) -> Rules

    def __init__(self, data):
        domain, problem, grammar = (data[k] for k in ("pddl_domain", "pddl_problem", "grammar"))
        task = re.search(r"Your task is to: ([^;|\"<>\[\]#{}\\]+)\"", grammar)
        if not task:
            raise GameError("the grammar states no task in plain words")
        self.task = task[1].rstrip(".")
        grammar = grammar.replace(task[0], 'Your task is to: @TASK@"')
        sections = {part[0]: part[1:] for part in read_lisp(problem)[1:]}
        if missing := {":objects", ":init", ":goal"} - sections.keys():
            raise GameError(f"the PDDL problem lacks {', '.join(sorted(missing))}")
        self.types, start = read_typed(sections[":objects"]), defaultdict(set)
        facts = [Literal(True, p, tuple(args)) for p, *args in sections[":init"] if p != "="]
        for fact in facts:
            start[fact.predicate].add(fact.arguments)
        if (domain, grammar) not in Game.known_rules:
            sizes = {predicate: len(values) for predicate, values in start.items()}
            Game.known_rules[domain, grammar] = Rules(domain, grammar, sizes)
        self.rules = Game.known_rules[domain, grammar]
        for fact in facts:
            self.rules.check(fact)
        ids = {o for fact in facts for o in fact.arguments}
        if undeclared := (ids - self.types.keys()) | (
            ({*self.types.values()}) - {*self.rules.types}
        ):
            raise GameError(f"the PDDL problem does not declare {', '.join(sorted(undeclared))}")
        self.names, self.fact_texts, self.operations, self.reachable = (
            name_entities(ids),
            {},
            {},
            None,
        )
        self.start = {p: frozenset(start.get(p, ())) for p in self.rules.fluents}
        self.constants = {p: frozenset(f) for p, f in start.items() if p not in self.rules.fluents}
        self.constant_facts = [self.fact(p, f) for p in self.constants for f in self.constants[p]]
        for kind in {"object", *self.types.values()}:
            members = [(o,) for o, k in self.types.items() if kind in (k, "object")]
            self.constants["- " + kind] = frozenset(members)
        self.indexes = {}
        self.goals = list(self.rules.conditions(sections[":goal"][0], {}))
        asked = {literal.predicate for goal in self.goals for literal in goal}
        self.read = self.rules.read | asked  # the predicates that matter
        if self.rules.unsure & asked:
            raise GameError("the goal reads what a conditional effect writes")

    def index(self, predicate, positions, key):
        """{values at the positions: facts} of a predicate that never changes."""
        if (predicate, positions) not in self.indexes:
            index = self.indexes[predicate, positions] = defaultdict(list)
            for fact in self.constants.get(predicate, ()):
                index[key(fact)].append(fact)
        return self.indexes[predicate, positions]

    def won(self, state):
        return any(self.rules.query(goal, (), False).find(self, state) for goal in self.goals)

    def commands(self, state):
        """{what the player may type: Operation}"""
        possible = {}
        for i, (_, _, query) in enumerate(self.rules.actions):
            for values in query.find(self, state):
                if (i, values) not in self.operations:
                    self.operations[i, values] = self.operation(i, values)
                operation = self.operations[i, values]
                if operation.changes:  # as stock: what changes nothing (going where one is) is none
                    possible.setdefault(operation.command, operation)
        return possible

    def operation(self, i, values):
        name, literals, query = self.rules.actions[i]
        env = dict(zip(query.variables, values))

        def ground(literal):
            return literal._replace(arguments=tuple(env.get(a, a) for a in literal.arguments))

        known = {ground(literal) for literal in literals}
        effects = [(ground(effect), when) for effect, when in self.rules.effects[name]]
        changes = [
            effect for effect, _ in effects
            if effect not in known
            and (effect.positive or (effect._replace(positive=True), False) not in effects)
        ]  # fmt: skip
        bindings = {v: env[v] for v in self.rules.parameters[name]}
        command = self.fill(self.start, read_template(self.rules.commands[name]), bindings)
        return Operation(command, name, bindings, changes)

    def apply(self, state, operation):
        """The state after an operation. As stock: what ends stays as not_..., and conditions of
        effects do not count (both branches are applied, so the last one stays)."""
        state = dict(state)
        for positive, predicate, fact in operation.changes:
            if positive or self.can_hold(state, predicate, fact):
                for name, keep in ((predicate, positive), ("not_" + predicate, not positive)):
                    facts = state.get(name, EMPTY)
                    state[name] = facts | {fact} if keep else facts - {fact}
        return state

    def can_hold(self, state, predicate, fact):
        """Could any play make it true? As stock: the end of what cannot be is no effect. Answered
        by ignoring what must be false for an action, once a game and only when in doubt."""
        now = state[predicate], self.start[predicate], state.get("not_" + predicate, EMPTY)
        if any(fact in facts for facts in now):
            return True
        if self.reachable is None:
            self.reachable = {p: set(facts) for p, facts in self.start.items()}
            seen, more = {}, True
            while more:
                more = False
                for i, (name, literals, _) in enumerate(self.rules.actions):
                    positive = tuple(literal for literal in literals if literal.positive)
                    sizes = [len(self.reachable.get(x.predicate, EMPTY)) for x in positive]
                    if seen.get(i) == sizes:
                        continue
                    seen[i], more = sizes, True
                    query = self.rules.query(positive, (), False)
                    effects = [e for e, _ in self.rules.effects[name] if e.positive]
                    for values in query.find(self, self.reachable):
                        env = dict(zip(query.variables, values))
                        for _, p, arguments in effects:
                            self.reachable[p].add(tuple(env.get(a, a) for a in arguments))
        return fact in self.reachable[predicate]

    def answer(self, state, operation):
        """What the game says after an operation, which led to `state`."""
        return self.fill(
            state, read_template(self.rules.feedback[operation.action]), operation.bindings
        )

    def opening(self):
        return self.text(self.start, "intro", {}).replace("@TASK@", self.task + ".")

    def fill(self, state, parts, env):
        """A template as text: `env` gives the variables, the state answers the queries."""
        texts = []
        for text, rule, terms, literals, is_list in parts:
            if text is not None:
                texts.append(text)
                continue
            query, items = self.rules.query(literals, tuple(env), True), []
            for values in sorted(query.find(self, state, env.values())):
                inner = {**env, **dict(zip(query.variables, values))}
                items.append(self.text(state, rule, inner) if rule else self.evaluate(terms, inner))
            if is_list and len(items) > 1:
                items[-2:] = [items[-2] + self.text(state, "list_last_separator", env) + items[-1]]
            if is_list and not items:
                items = [self.text(state, "list_empty", env)]
            texts.append((self.text(state, "list_separator", env) if is_list else "").join(items))
        return "".join(texts)

    def text(self, state, rule, env):
        """The text of the first rule of that name whose condition holds."""
        for condition, template in self.rules.texts.get(rule, ()):
            if self.rules.query(condition, tuple(env), True).find(self, state, env.values()):
                return self.fill(state, read_template(template), env)
        raise GameError(f"the grammar has no {rule!r} for this state")

    def evaluate(self, terms, env):
        articles = {"indefinite": "a", "definite": "the"}
        if unknown := [v for v, attribute in terms if attribute and v not in env]:
            raise GameError(f"the grammar's variable {unknown[0]} is not bound")
        return "".join([
            value if attribute is None else articles.get(attribute) or self.names[env[value]]
            for value, attribute in terms
        ])  # fmt: skip

    def fact(self, predicate, fact):
        """As textworld prints it: 'inreceptacle(mug 2: object, desk 1: receptacle)'."""
        text = self.fact_texts.get((predicate, fact))
        if text is None:
            arguments = ", ".join([f"{self.names[a]}: {self.types[a]}" for a in fact])
            text = self.fact_texts[predicate, fact] = f"{predicate}({arguments})"
        return text

    def facts(self, state):
        """All facts of the stock engine, also of the past (not_..., checked), as a set of texts."""
        return {self.fact(p, fact) for p in state for fact in state[p]} | {*self.constant_facts}
