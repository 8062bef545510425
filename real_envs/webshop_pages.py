"""The pages of WebShop's text mode: what they say, what can be clicked, where it leads (2 of 3).

The rules, and the accidents of the original that are kept, are in webshop_engine.py.
"""

import hashlib
import json
import random

from real_envs.webshop_engine import RESULTS, score_purchase

SEPARATOR, PER_PAGE = " [SEP] ", 10
SUB_PAGES = ("description", "features", "reviews", "attributes")
# The original finds out where it is from the first of these words in its URL.
URL_WORDS = ("search_results", "item_page", "item_sub_page", "done")
THANKS = "Thank you for shopping with us!", "Your code:", "None"
MISSPELT = "instuction text"  # as the original's last page has it


def parse_action(text):
    """(name, argument in lower case) of `name[argument]`, or None. As the original's greedy
    expression: the last bracket that can open, the last that closes, on the first line.

    >>> parse_action("click[Buy Now] please"), parse_action("search[a[b]]"), parse_action("click[]")
    (('click', 'buy now'), ('search[a', 'b]'), None)
    """
    line = text.split("\n", 1)[0] if isinstance(text, str) else ""
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return None if start < 0 else (line[:start], line[start + 1 : end].lower())


def visible(pieces):
    """The pieces that a reader of the page gets, stripped. Blank ones stay unless they are empty or
    hold a newline, as in the original's HTML."""
    blank = " \t\n\f\r"
    return [p.strip() for p in pieces if p.strip(blank) or (p and "\n" not in p)]


class Session:
    """One visit to the shop, with one goal.

    `page` is "search", one of the first three URL_WORDS, or "done"; `number` counts result pages
    from 1; `options` are the chosen ones of the product `asin`.
    """

    def __init__(self, shop, goal, show_attributes=False):
        self.shop, self.goal, self.show_attributes = shop, goal, show_attributes
        self.reward, self.parts = 0.0, None
        self.back_to_search()

    def act(self, text):
        """Does `search[..]` or `click[..]`; False, and no effect, if that is not possible here.
        A search is possible on every page; a button must be on this one."""
        name, argument = parse_action(text) or (None, None)
        if self.page == "done" or name not in ("search", "click"):
            return False
        if name == "search":
            keywords = argument.split(" ")  # two blanks give an empty keyword
            if keywords[0] == "<a>" or keywords == ["<c>"]:
                return False
            self.results(keywords, 1)
            return True
        if argument not in self.clickables or argument == "search":
            return False
        self.click(argument)
        return True

    def click(self, button):
        url = "+".join([self.page, *self.keywords, json.dumps(self.options)])
        seems = next((word for word in URL_WORDS if word in url), None)
        if button == "buy now":
            self.show("done")
            product = self.shop.by_asin[self.asin]
            bought = score_purchase(product, self.goal, self.options, self.shop.nouns)
            self.reward, self.parts, _ = bought
        elif button == "back to search":
            self.back_to_search()
        elif button == "next >" and seems == "search_results":
            self.results(self.keywords, self.number + 1)
        elif button == "< prev" and seems == "search_results":
            self.results(self.keywords, self.number - 1)
        elif button == "< prev" and seems == "item_page":
            self.results(self.keywords, self.number)  # and the options are lost
        elif button in SUB_PAGES:
            self.show("item_sub_page", button)
        else:
            if self.clickables[button] == "product":
                self.asin = button.upper()
            elif self.clickables[button] != "button":
                self.options[self.clickables[button][1]] = button
            self.show("item_page")

    def back_to_search(self):
        self.keywords, self.number, self.asin, self.options = [], None, None, {}
        self.show("search")

    def results(self, keywords, number):
        self.keywords, self.number, self.asin, self.options = keywords, number, None, {}
        self.found = self.shop.find(tuple(keywords))
        self.show("search_results")

    def show(self, page, sub=None):
        """Goes to a page: `clickables` are {text: "button", "product" or ("option", its name)}."""
        self.page, self.sub = page, sub
        options, products, buttons = {}, [], ["back to search", "< prev"]
        if page in ("search", "done"):  # after the end the original is at its next session's search
            buttons = ["search"]
        elif page == "search_results":
            buttons = ["back to search", *["< prev"] * (self.number > 1), "next >"]
            products = [p.asin.lower() for p in self.on_this_page()]
        elif page == "item_page":
            buttons += [*SUB_PAGES[: 3 + self.show_attributes], "buy now"]
            options = self.shop.by_asin[self.asin].options
        self.clickables = dict.fromkeys(buttons, "button") | dict.fromkeys(products, "product")
        for name, values in options.items():  # a value of two options belongs to the later one
            self.clickables |= dict.fromkeys(values, ("option", name))

    def on_this_page(self):
        return self.found[PER_PAGE * (self.number - 1) : PER_PAGE * self.number]

    def state(self):
        """The identity of the page and of what was chosen on it, hashable. That of a product leaves
        out the search that led there: it only matters to `< Prev` on the way back."""
        if self.asin is None:
            return self.page, tuple(self.keywords), self.number
        return self.page, self.sub, self.asin, tuple(sorted(self.options.items()))

    def pieces(self):
        """The visible texts of the page, in order."""
        product = self.shop.by_asin.get(self.asin)
        head = ["Instruction:", self.goal.instruction_text]
        back = [*head, "Back to Search", "< Prev"]
        if self.page == "search":
            return visible(["WebShop", *head, "Search"])
        if self.page == "search_results":
            total = f"Page {self.number} (Total results: {len(self.found)})"
            buttons = ["< Prev", "Next >"] if self.number > 1 else ["Next >"]
            items = [text for p in self.on_this_page() for text in (p.asin, p.title, p.tag)]
            return visible([*head, "Back to Search", total, *buttons, *items])
        if self.page == "item_page":
            options = [text for name, values in product.options.items() for text in (name, *values)]
            facts = [product.title, f"Price: {product.tag}", "Rating: N.A."]
            buttons = [sub.title() for sub in SUB_PAGES[: 3 + self.show_attributes]]
            return visible([*back, *options, *facts, *buttons, "Buy Now"])
        if self.page == "item_sub_page":
            more = {
                "description": [product.description],
                "features": [" " + bullet for bullet in product.bullets],
                "reviews": [],
                "attributes": [*product.attributes, product.category, product.query,
                               product.product_category],
            }  # fmt: skip
            return visible([*back, *more[self.sub]])
        options = json.dumps(self.options, sort_keys=True)
        for sign in "<>&'":
            options = options.replace(sign, f"\\u{ord(sign):04x}")
        bought = [
            "(Paste it in your MTurk interface.)",
            "Purchased",
            "asin",
            self.asin,
            "options",
            options,
            "attrs",
            "None",
        ]
        bought += ["category", "None", "query", "None", "product category", "None"]
        target = ["Target", "asin", "options", "attrs", "price upper", MISSPELT, "category"]
        target += ["product category", "query", "Goal", "None"]
        score = ["Reward", "Your score (min 0.0, max 1.0)", str(self.reward)]
        return visible([*THANKS, *bought, *target, *score, "Reward Details", "None"])

    def text(self):
        return SEPARATOR.join(self.pieces())


class Shop:
    """What all sessions share: products, goals, the search, the nouns of titles."""

    def __init__(self, products, goals, search, nouns):
        self.products, self.goals, self.search, self.nouns = products, goals, search, nouns
        self.by_asin, self.recent = {p.asin: p for p in products}, {}
        told = "\n".join(goal.instruction_text for goal in goals)
        self.version = hashlib.sha256(told.encode()).hexdigest()[:12]

    def find(self, keywords):
        """The products for a tuple of keywords; `<r>`, `<q>` and `<c>` as first one are special."""
        if keywords not in self.recent:
            if len(self.recent) >= 4096:
                self.recent.clear()
            self.recent[keywords] = self._find(keywords[0], keywords[1:])
        return self.recent[keywords]

    def _find(self, first, rest):
        if first == "<r>":
            draw = random.Random(" ".join(rest).encode("utf-8", "surrogatepass"))
            return draw.sample(self.products, min(RESULTS, len(self.products)))
        if first == "<q>":
            return [p for p in self.products if p.query == " ".join(rest).strip()]
        if first == "<c>":  # the second keyword only
            return [p for p in self.products if p.category == rest[0].strip()]
        return self.search(" ".join([first, *rest]))
