"""What a game file of ALFWorld says: PDDL, conditions as queries, and the text grammar.

The supported fragment: typed STRIPS with `or`, `not` and `exists` in preconditions, `when` in
effects, one level of types; in the grammar, lists, rules, queries, and expressions of names, quoted
texts, `+` and `or`. Nothing is executed: what is outside of the fragment raises GameError.
"""

import functools
import itertools
import re
import sys
from collections import Counter
from operator import itemgetter
from typing import NamedTuple

EMPTY = frozenset()


class GameError(ValueError):
    """A game that is broken, or outside the fragment that this engine plays."""


class Literal(NamedTuple):
    """`predicate(arguments)`, or its negation. Arguments that begin with ? are variables."""

    positive: bool
    predicate: str
    arguments: tuple[str, ...]


# ---- reading PDDL --------------------------------------------------------------------------------


def read_lisp(text):
    """PDDL as nested lists of lower-case words.

    >>> read_lisp("(and (holds ?a ?o) (not (full ?r))) ; a comment")
    ['and', ['holds', '?a', '?o'], ['not', ['full', '?r']]]
    """
    stack = [[]]
    text = re.sub(r";[^\n]*", "", text).replace("?", " ?").lower()
    for word in re.findall(r"[()]|[^\s()]+", text):
        if word == "(":
            stack.append([])
        elif word != ")":
            stack[-1].append(sys.intern(word))
        elif len(stack) > 1:
            stack[-2].append(stack.pop())
        else:
            raise GameError("PDDL with a ) too many")
        if len(stack) > 40:
            raise GameError("PDDL nested too deeply")
    if len(stack) > 1 or not stack[0] or not isinstance(stack[0][0], list):
        raise GameError("PDDL that breaks off: a ( is never closed")
    return stack[0][0]


def read_typed(words):
    """Names with their types.

    >>> read_typed("?a - agent ?from ?to - location".split())
    {'?a': 'agent', '?from': 'location', '?to': 'location'}
    """
    types, names, words = {}, [], iter(words)
    for word in words:
        if word == "-":
            types.update(dict.fromkeys(names, next(words, "object")))
            names = []
        else:
            names.append(word)
    return types | dict.fromkeys(names, "object")


def read_condition(condition, types, renamed=None):
    """A condition as alternatives, each a tuple of Literals that must all hold.

    Quantified variables get a name of their own, and their type is added to `types`.
    """
    renamed = renamed or {}
    if not condition:
        return [()]
    head, *parts = condition
    if head == "and":
        several = [read_condition(part, types, renamed) for part in parts]
        if functools.reduce(lambda n, s: n * len(s), several, 1) > 256:
            raise GameError("a PDDL condition with too many alternatives")
        return [sum(choice, ()) for choice in itertools.product(*several)]
    if head == "or":
        return [choice for part in parts for choice in read_condition(part, types, renamed)]
    if head == "exists":
        names = {name: f"{name}@{len(types)}" for name in read_typed(parts[0])}
        types.update({names[name]: kind for name, kind in read_typed(parts[0]).items()})
        return read_condition(parts[1], types, {**renamed, **names})
    predicate, *arguments = parts[0] if head == "not" else condition
    if predicate in ("and", "or", "not", "exists", "forall", "imply", "when"):
        raise GameError(f"a PDDL condition with {head} ({predicate} ...) is not supported")
    return [(Literal(head != "not", predicate, tuple(renamed.get(a, a) for a in arguments)),)]


def read_effects(effect, conditional=False):
    """Pairs (Literal, does it depend on a condition?), what becomes true before what ends."""
    head, *parts = effect
    if head == "and":
        return sorted((e for part in parts for e in read_effects(part, conditional)), reverse=True)
    if head == "when":
        return read_effects(parts[1], True)
    if head in ("forall", "or", "exists"):
        raise GameError(f"a PDDL effect with {head} is not supported")
    if head == "increase":  # of the plan's cost
        return []
    predicate, *arguments = parts[0] if head == "not" else effect
    return [(Literal(head != "not", predicate, tuple(arguments)), conditional)]


# ---- asking --------------------------------------------------------------------------------------


def pick(positions):
    """A function from a tuple to the tuple of its values at the positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return (lambda row, i=positions[0]: (row[i],)) if positions else lambda row: ()


class Query:
    """All values of the `variables` that make the literals true, given the values of others.

    Rows of values (first the given ones and the constants) are joined with one literal after the
    other: a test if there is one, else what binds new variables with the fewest facts.
    """

    def __init__(self, rules, literals, given, distinct):
        names = [a for literal in literals for a in literal.arguments]
        self.constants = tuple(dict.fromkeys(a for a in names if a[0] != "?"))
        self.columns = {a: i for i, a in enumerate((*given, *self.constants))}
        self.variables = list(dict.fromkeys(a for a in names if a not in self.columns))
        self.joins, todo = [], list(literals)

        def cost(literal):
            known = sum(a in self.columns for a in literal.arguments)
            free = known < len(literal.arguments)
            return free, not literal.positive, rules.sizes.get(literal.predicate, 0) / 10**known

        while todo:
            todo.remove(literal := min(todo, key=cost))
            self.joins.append(self.join(literal, rules, distinct))
        self.answer = pick([self.columns[v] for v in self.variables])

    def join(self, literal, rules, distinct):
        """A function (game, state, rows) -> the rows that also satisfy the literal."""
        positive, predicate, arguments = literal
        known = [i for i, a in enumerate(arguments) if a in self.columns]
        new = [i for i, a in enumerate(arguments) if a not in self.columns]
        wanted, changing = (
            pick([self.columns[arguments[i]] for i in known]),
            rules.changes(predicate),
        )
        names = {arguments[i] for i in new}
        if new and (not positive or predicate == "=" or len(names) < len(new)):
            raise GameError(f"cannot tell what {sorted(names)} may be in {literal}")
        if predicate == "=":
            return lambda game, state, rows: [
                row for row in rows if (len({*wanted(row)}) == 1) == positive
            ]
        if not new:
            return lambda game, state, rows: [
                row
                for facts in ((state if changing else game.constants).get(predicate, EMPTY),)
                for row in rows
                if (wanted(row) in facts) == positive
            ]
        width, have, found = len(self.columns), pick(known), pick(new)
        self.columns |= {arguments[i]: width + k for k, i in enumerate(new)}

        def extend(game, state, rows):
            if changing:
                facts = state.get(predicate, EMPTY)
                rows = [(r, w, f) for r in rows for w in (wanted(r),) for f in facts]
                rows = [row + found(fact) for row, want, fact in rows if have(fact) == want]
            else:
                index = game.index(predicate, tuple(known), have)
                rows = [row + found(fact) for row in rows for fact in index.get(wanted(row), ())]
            if distinct:  # in the grammar, different variables are different things
                rows = [r for r in rows if len({*r[width:]} - {*r[:width]}) == len(new)]
            return rows

        return extend

    def find(self, game, state, given=()):
        rows = [(*given, *self.constants)]
        for join in self.joins:
            rows = join(game, state, rows)
            if not rows:
                return rows
        return [self.answer(row) for row in rows]


# ---- reading the text grammar --------------------------------------------------------------------

SYMBOL = re.compile(  # [{expression | query}], {#rule# | query}, #rule#, or text
    r"(?P<list>\[)?\{(?:#(?P<inner>[^#]+)#|(?P<expression>[^|\[\]{}\n<>#]+?))"
    r"\s*(?:\|(?P<query>[^;|{}\n\[\]#]+))?\}(?(list)\])"
    r'|#(?P<rule>[^#{}\[\]|]+)#|(?P<text>[^;|"<>\[\]#{}]+)'
)
TERM = re.compile(r"\s*(?:'([^']*)'|(\w+)(?:\.(name|indefinite|definite))?)\s*")


def read_query(text):
    """'inreceptacle(o:object, r:receptacle) & ...' as Literals; the types are not looked at."""
    atoms = re.findall(r"([\w-]+)\(([^)]*)\)", text or "")
    split = [(p, [a.split(":")[0].strip() for a in arguments.split(",")]) for p, arguments in atoms]
    return tuple(Literal(True, p, tuple("?" + a for a in arguments)) for p, arguments in split)


def read_expression(text):
    """The terms whose texts an expression puts together: ('text', None) or (variable, attribute).

    >>> read_expression("o.indefinite + ' ' + o.name")
    [('?o', 'indefinite'), (' ', None), ('?o', 'name')]
    """
    first, *_ = text.split(" or ")  # `r.name or r.id`: a name is never empty
    terms = [TERM.fullmatch(term) for term in first.split("+")]
    if not all(terms):
        raise GameError(f"the grammar's expression {text!r} is not supported")
    return [(f"?{t[2]}", t[3] or "name") if t[2] else (t[1], None) for t in terms]


@functools.lru_cache(2000)
def read_template(text):
    """'[{o.name | on(o:object, r:receptacle)}].' as parts: (text, rule, terms, query, list?)."""
    parts, text, end = [], text.lstrip(), 0  # as stock: white space at the start is dropped
    while symbol := SYMBOL.match(text, end):
        terms = symbol["expression"] and read_expression(symbol["expression"])
        rule, query = symbol["rule"] or symbol["inner"], read_query(symbol["query"])
        parts.append((symbol["text"], rule, terms, query, bool(symbol["list"])))
        end = symbol.end()
    if end < len(text):
        raise GameError(f"cannot read the grammar at {text[end : end + 40]!r}")
    return parts


def name_entities(ids):
    """The names that ALFWorld shows. As stock: among equal names the first id in the alphabet gets
    the highest number, and what has no number keeps a space behind its name.

    >>> name_entities(["mug_bar_1", "mug_bar_2", "sink_bar_1_bar_sinkbasin", "agent1"]).values()
    dict_values(['mug 2', 'mug 1', 'sinkbasin 1', 'agent1 '])
    """
    kinds = {i: i.split("_bar_")[0] + "basin" * ("basin" in i) for i in sorted(ids) if "_bar_" in i}
    left, names = Counter(kinds.values()), {}
    for i, kind in kinds.items():
        names[i] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names | {i: i + " " for i in ids if i not in names}
