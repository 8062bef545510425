"""The WebShop text environment in plain Python: products, goals, search, reward (1 of 3 files).

WebShop (Yao et al., 2207.01206) asks for a purchase: search, open a product, choose its options,
buy. This is its text mode to the letter, made from observed behaviour, without Java or a browser;
webshop_pages.py has the pages, webshop.py the environment. Accidents of the original that are kept,
each named where it happens: title words count twice in the search; `< Prev` goes by words in the
URL, and so in the query; a goal's option is compared as a printed tuple; colours are looked for
inside words (rec-TAN-gular); the item page does not show what has been chosen.

Ours, where the original crashes or is not reproducible: `<a>` and a bare `<c>` as query have no
effect; ties in the search are in catalogue order; the 50 random products of `<r>` depend on the
query alone; after the end nothing happens (the original starts another session by itself); goals
are drawn evenly (the original draws them by their weight, which is kept).
"""

import functools
import itertools
import math
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

SEED = 42  # of prices, price bounds and the order of goals
NO_BOUND = 1_000_000  # price_upper of a goal without a bound
RESULTS = 50
# The original's colour vocabulary, in its order (data of princeton-nlp/WebShop, MIT).
COLOURS = """alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze
brown burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee
cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold
granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard
light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural
navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire
seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet
walnut wheat white wine yellow""".split()  # noqa: SIM905
# Lucene's English stop words, for `LuceneSearch`.
STOP_WORDS = set(
    """a an and are as at be but by for if in into is it no not of on or such that the
    their then there these they this to was will with""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Product:
    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    product_category: str
    tag: str  # the price as shown, perhaps a range
    price: float  # the price as paid, drawn from the range
    options: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    instruction: str | None  # of the synthetic goals
    instruction_attributes: tuple[str, ...]


@dataclass
class Goal:
    asin: str
    query: str
    name: str
    product_category: str
    attributes: tuple[str, ...]
    price_upper: float
    goal_options: dict[str, str] | tuple[str, ...]  # a tuple of values: from a human
    instruction_text: str = ""
    category: str = ""
    weight: float = 1.0


def read_price(text):
    """The price tag and the one or two numbers behind it.

    >>> read_price("$44.99 - $33.98"), read_price("")
    (('$44.99 to $33.98', [44.99, 33.98]), ('$100.0', [100.0]))
    """
    numbers = [float(re.sub(r"[^\d.]", "", part)) for part in (text or "$100").split("$")[1:3]]
    return " to ".join(f"${number}" for number in numbers), numbers


def texts(values):
    """A list of texts as a tuple. TypeError for all else: of one text it would be the letters."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{repr(values)[:80]} is no list of texts")
    return tuple(values)


def read_products(records, attributes):
    """Products from the original's records, in their order; the first of an asin counts.

    Args: records: list of dicts; attributes: {asin: {attributes, instruction?,
        instruction_attributes?}}. A record that cannot be read is a ValueError that names it.
    """
    products, draw = {}, random.Random(SEED)
    for position, record in enumerate(records):
        try:
            asin = record["asin"]
            if asin == "nan" or asin in products or (len(asin) > 10 and asin[:3] != "LK_"):
                continue
            if asin != asin.upper():  # a click could not find it
                raise ValueError("its asin is not in upper case")
            extra, bullets = attributes.get(asin, {}), record["small_description"]
            tag, numbers = read_price(record.get("pricing"))
            names = "name", "full_description", "category", "product_category"
            title, description, category, departments = texts([record[name] for name in names])
            products[asin] = Product(
                asin=asin,
                title=title,
                description=description,
                bullets=texts([bullets] if isinstance(bullets, str) else bullets),
                category=category,
                query=record["query"].lower().strip(),
                product_category=departments,
                tag=tag,
                price=draw.uniform(*numbers) if len(numbers) == 2 else numbers[0],
                options={
                    name.lower(): tuple(
                        value["value"].strip().replace("/", " | ").lower() for value in values
                    )
                    for name, values in (record.get("customization_options") or {}).items()
                    if values is not None
                },
                attributes=texts(extra.get("attributes", ["DUMMY_ATTR"])),
                instruction=extra.get("instruction"),
                instruction_attributes=texts(extra.get("instruction_attributes") or []),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(f"product record {position} cannot be read: {error!r}") from None
    return list(products.values())


def make_goals(products, human=None):
    """The goals, in the original's order. `human`: {asin: [instructions]}, instead of synthetic."""
    draw, goals = random.Random(SEED), []

    def price_bound(price):
        """The larger of two of the next four tens above the price, and its text."""
        above = [10.0 * k for k in range(1, 100) if 10.0 * k > price][:4]
        if len(above) < 2:
            return NO_BOUND, ""
        upper = max(draw.sample(above, 2))
        return upper, f", and price lower than {upper:.2f} dollars"

    def add(product, attributes, text, upper, options):
        goal = product.asin, product.query, product.title, product.product_category
        goals.append(Goal(*goal, attributes, upper, options, text, product.category))

    for product in products:
        for given in (human or {}).get(product.asin, ()):
            if attributes := texts(given["instruction_attributes"]):
                upper, bound = price_bound(product.price)
                text, options = given["instruction"].rstrip("."), given["instruction_options"]
                add(product, attributes, text + bound, upper, texts(options))
        if human is None and product.instruction is not None and product.instruction_attributes:
            upper, bound = price_bound(product.price)
            names = sorted(product.options)
            # A value that is listed twice gives its goals twice.
            for values in itertools.product(*(product.options[name] for name in names)):
                wishes = ", and ".join(f"{n}: {v}" for n, v in zip(names, values))
                text = product.instruction + (f" with {wishes}" if wishes else "") + bound
                add(product, product.instruction_attributes, text, upper, dict(zip(names, values)))
    if human is None:  # rare attributes weigh more
        counts = Counter(attribute for goal in goals for attribute in goal.attributes)
        for goal in goals:
            shares = [1.0 / counts[attribute] for attribute in goal.attributes]
            goal.weight = sum(shares) / len(shares)
    draw.shuffle(goals)  # the same generator goes on
    return goals


class Search:
    """BM25 (Okapi, k1 1.2, b 0.75) over title, title again, description and bullets, in memory.

    An idf below 0 becomes a quarter of the mean idf, so that `the` outweighs rarer words. Always 50
    results, products without a hit included, unless the query has no words. Options and attributes
    are not searched.
    """

    k1, b = 1.2, 0.75

    def __init__(self, products):
        self.products, tf, count = products, [], Counter()
        for p in products:
            parts = [p.title, p.title, *([p.description] if p.description else []), *p.bullets]
            tf.append(Counter(self.words(" ".join(parts))))
            count.update(tf[-1].keys())
        if not count:
            raise ValueError("no product has a word to search for")
        lengths = np.array([sum(words.values()) for words in tf])
        self.norm = self.k1 * (1 - self.b + self.b * lengths / lengths.mean())
        idf = {w: math.log(len(tf) - n + 0.5) - math.log(n + 0.5) for w, n in count.items()}
        least = 0.25 * sum(idf.values()) / len(idf)
        self.idf = {word: value if value >= 0 else least for word, value in idf.items()}
        self.hits = defaultdict(lambda: ([], []))  # word -> (documents, how often it is in each)
        for document, words in enumerate(tf):
            for word, n in words.items():
                self.hits[word][0].append(document)
                self.hits[word][1].append(n)

    def words(self, text):
        return re.findall(r"\w+", text.lower())

    def scores(self, query):
        """The score of each product, float64 [products]; a word given twice counts twice."""
        scores = np.zeros(len(self.products))
        for word in self.words(query):
            if word in self.hits:
                at, n = map(np.array, self.hits[word])
                scores[at] += self.idf[word] * (n * (self.k1 + 1) / (n + self.norm[at]))
        return scores

    def __call__(self, query):
        """The best products, ties in catalogue order."""
        if not self.words(query):
            return []
        best = np.argsort(-self.scores(query), kind="stable")[:RESULTS]
        return [self.products[i] for i in best]


class LuceneSearch(Search):
    """As published numbers have it: BM25 with k1 0.9, b 0.4, stemming and stop words, over title,
    description, first bullet and options; hits only. Close to Lucene, not to the last tie."""

    def __init__(self, products):
        try:
            import bm25s
            import Stemmer
        except ImportError:
            raise ImportError("lucene search needs: pip install bm25s PyStemmer") from None
        self.products, self.stem = products, Stemmer.Stemmer("porter").stemWord
        self.index = bm25s.BM25(k1=0.9, b=0.4, method="lucene")
        documents = []
        for p in products:
            options = ", and ".join(f"{n}: {', '.join(values)}" for n, values in p.options.items())
            documents.append(" ".join([p.title, p.description, *p.bullets[:1], options]))
        self.index.index([self.words(text) for text in documents], show_progress=False)

    def words(self, text):
        # One word: letters around an apostrophe or a dot, digits around those or a comma (40.00).
        inside = r"(?<=[^\W\d])['’.](?=[^\W\d])|(?<=\d)['’.,;](?=\d)"
        tokens = re.findall(rf"\w(?:\w|{inside})*", text.lower())
        tokens = [re.sub(r"['’]s$", "", token) for token in tokens]
        # Words of one or two letters (sizes) have no stem.
        return [self.stem(t) if len(t) > 2 else t for t in tokens if t not in STOP_WORDS]

    def scores(self, query):
        words = [word for word in self.words(query) if word in self.index.vocab_dict]
        return self.index.get_scores(words) if words else np.zeros(len(self.products))

    def __call__(self, query):
        scores = self.scores(query)
        best = np.argsort(-scores, kind="stable")[:RESULTS]
        return [self.products[i] for i in best if scores[i] > 0]


@functools.lru_cache(1 << 16)
def token_set_score(a, b):
    """How alike two things are, 0 to 100: fuzzy matching of their sets of words (`thefuzz`).

    >>> token_set_score("machine washable", "machine wash"), token_set_score("large", "x-large")
    (86, 100)
    >>> token_set_score("x-large", ("size", "xx-large"))  # a tuple is compared as Python prints it
    83
    """
    sets = []
    for text in (str(a), str(b)):
        text = re.sub("[\x80-\xff]", "", text)
        sets.append(set(re.sub(r"[\W_]", " ", text).lower().split()))
    if not all(sets):
        return 0
    x, y = (" ".join(sorted(words)) for words in (sets[0] - sets[1], sets[1] - sets[0]))
    common = len(" ".join(sorted(sets[0] & sets[1])))
    if common and not (x and y):
        return 100
    previous = [0] * (len(y) + 1)  # longest common subsequence of x with each beginning of y
    for c in x:
        row = [0]
        for j, d in enumerate(y):
            row.append(previous[j] + 1 if c == d else max(previous[j + 1], row[j]))
        previous = row
    indel, space = len(x) + len(y) - 2 * previous[-1], int(common > 0)
    pairs = [(indel, 2 * common + 2 * space + len(x) + len(y))]
    if common:
        pairs += [(space + len(rest), 2 * common + space + len(rest)) for rest in (x, y)]
    return round(max(100 - 100 * distance / total for distance, total in pairs))


@functools.lru_cache(1 << 16)
def main_colour(thing):
    """The first colour in it instead of the whole: inside a text, or equal to a part of a pair.

    >>> main_colour("wine red"), main_colour("rectangular"), main_colour(("color", "wine red"))
    ('red', 'tan', ('color', 'wine red'))
    """
    return next((colour for colour in COLOURS if colour in thing), thing)


def option_hits(chosen, asked):
    """Which of the asked options are met by one of the chosen values, whatever its name.

    >>> option_hits(["large", "red"], {"color": "wine red", "size": "x-large", "shape": "round"})
    [True, True, False]
    """
    chosen, pairs = [main_colour(value) for value in chosen], isinstance(asked, dict)
    wishes = [main_colour(wish) for wish in (asked.items() if pairs else asked)]
    return [any(token_set_score(value, wish) > 85 for value in chosen) for wish in wishes]


def attainable(goal):
    """Whether exactly the right options meet the goal: a `rectangular` one (tan!) cannot be met.
    (Whether each of them can be clicked is not asked.)"""
    asked = goal.goal_options
    return all(option_hits(asked.values() if isinstance(asked, dict) else asked, asked))


def score_purchase(product, goal, options, nouns, price=None):
    """The reward of buying `product` with the chosen {name: value}, and what it is made of.

    Args: nouns: title -> list of its nouns; price: instead of the product's own.
    Returns (reward in [0, 1], parts, facts: the names in `wishes(goal)` that are fulfilled).
    """
    department = [{p.strip() for p in x.product_category.split("›")} for x in (product, goal)]
    same_query, same_category = product.query == goal.query, len(set.intersection(*department)) >= 2
    theirs, wanted = nouns(product.title), nouns(goal.name)
    title = len(set(theirs) & set(wanted)) / len(wanted) if wanted else 0.2
    kind = 1.0 if same_query or same_category or title > 0.2 else 0.5
    if title < 0.1:  # in spite of query and category
        kind = 0.1 if title else 0.0
    pages = [product.title.lower(), " ".join(product.bullets).lower(), product.description.lower()]
    attributes = sum(
        any(token_set_score(mine, attribute) > 85 for mine in product.attributes)
        or any(attribute in text for text in pages)
        for attribute in goal.attributes
    )
    hits = option_hits(options.values(), goal.goal_options)
    cheap = (product.price if price is None else price) <= goal.price_upper
    total = len(goal.attributes) + len(hits) + 1
    parts = {"r_type": kind, "query_match": same_query, "category_match": same_category}
    parts |= {"title_score": title, "r_price": cheap, "w_price": 1 / total}
    parts |= {"r_att": attributes / len(goal.attributes), "w_att": len(goal.attributes) / total}
    if hits:
        parts |= {"r_option": sum(hits) / len(hits), "w_option": len(hits) / total}
    held = (kind == 1.0, attributes == len(goal.attributes), cheap, *hits)
    facts = frozenset(wish for wish, holds in zip(wishes(goal), held) if holds)
    return kind * ((attributes + sum(hits) + cheap) / total), parts, facts


def wishes(goal):
    """What a purchase must fulfil; the reward is 1 if and only if all of it is.

    >>> wishes(Goal("B1", "q", "n", "c", ("soft",), 40.0, {"color": "red"}))
    ('type', 'attrs', 'price', 'opt:color')
    """
    return ("type", "attrs", "price", *(f"opt:{option}" for option in goal.goal_options))
