"""The embedded policy: small, a real checkpoint, plays badly, uses a reference in its context."""

import sys

import pytest
import torch
from conftest import HOUSE

FOLDER = HOUSE / "toy_envs/toy_lm"
sys.path.insert(0, str(FOLDER))
import make  # noqa: E402


def test_size():
    assert sum(p.stat().st_size for p in FOLDER.glob("*") if p.is_file()) < 1.5e6


def test_every_action_and_word_is_one_token(policy):
    for word in f"{make.ACTIONS} {make.WORDS}".split():
        assert len(policy.encode(word)) == 1 and policy.encode(word)[0] != policy.encode("xyzzy")[0]
    assert policy.stops >= {policy.encode(word)[0] for word in make.ACTIONS.split()}


@pytest.mark.parametrize("name", make.TASKS)
def test_speaks_what_the_task_says(policy, name):
    """No observation of a demonstration holds a word it does not know."""
    unknown = policy.encode("xyzzy")[0]
    for seed in range(20):
        pairs, _ = make.demonstrate((name, make.FIRST_SEED - 1 - seed, 0.5, False))
        assert all(unknown not in policy.encode(text) for text, _ in pairs)


@pytest.mark.parametrize("name", make.TASKS)
def test_plays_badly_but_not_hopelessly(policy, name):
    torch.manual_seed(0)
    assert 0.15 <= make.success(policy, name, 1.0) <= 0.35


@pytest.mark.parametrize("name", make.TASKS)
def test_uses_a_reference(policy, name):
    """On held-out tasks: likelier where the reference did the same, unlikelier where it did not."""
    gaps = make.reference_gaps(policy, name, count=32)
    print(gaps)
    assert gaps["agrees"] >= 0.1 and gaps["disagrees"] <= -0.5


def test_instructions_are_left_out_and_a_reference_is_not(policy):
    plain = policy.opening("", "key here")
    assert policy.opening("Play well.", "key here") == plain
    hint = "Play well.\n\nA successful attempt:\nkey here > take"
    assert policy.tokenizer.decode(policy.opening(hint, "key here")) == (
        "reference key here > take end key here >"
    )
