"""Groups, log-probabilities, loss, update: compared with their definitions."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import walk

import common

ln = np.log


# Groups


def test_equal_values_and_a_group_of_one_are_exactly_zero():
    assert common.normalize_within([1, 1, 1, 1], "aaaa").tolist() == [0, 0, 0, 0]
    assert common.normalize_within([0.1] * 3, "aaa").tolist() == [0, 0, 0]
    assert common.normalize_within([5], "a").tolist() == [0]


def test_the_standard_deviation_is_the_unbiased_one():
    values = [1, 0, 0, 1, 0, 0, 1, 0]
    assert common.normalize_within(values, "a" * 8)[:2] == pytest.approx(
        [1.2076, -0.7246], abs=1e-4
    )
    assert common.normalize_within(values, "a" * 8, std=False)[:2].tolist() == [0.625, -0.375]


def test_groups_are_by_key_whatever_their_size_and_order():
    half = 0.5**0.5
    values = common.normalize_within([1, 0, 101, 100], "aabb")
    assert values == pytest.approx([half, -half, half, -half], abs=1e-4)
    assert common.normalize_within([1, 3, 5], "aab") == pytest.approx([-half, half, 0], abs=1e-4)
    assert common.normalize_within([100, 1, 101, 0], "baba") == pytest.approx(
        [-half, half, half, -half], abs=1e-4
    )
    with_dead = common.normalize_within([1, 0, 7, 7, 7], "aabbb")
    assert (with_dead[:2] == common.normalize_within([1, 0], "aa")).all()


def test_what_is_not_finite_is_nobodys_peer():
    values = common.normalize_within([np.nan, 1, 3, np.inf], "aaaa")
    assert values == pytest.approx([0, -(0.5**0.5), 0.5**0.5, 0], abs=1e-4)


def test_an_unplayed_episode_has_no_outcome():
    assert np.isnan(common.Episode(1, []).reward)
    assert walk(1, "ABC", 2.5).reward == 2.5


# Log-probabilities and loss


def test_temperature_and_bias():
    logits = torch.tensor([[2.0, 0.0]])
    assert common.log_softmax(logits, 0.5, [None])[0, 0].item() == pytest.approx(-0.01815, abs=1e-5)
    assert common.log_softmax(logits, 1.0, [None])[0, 0].item() == pytest.approx(-0.12693, abs=1e-5)
    assert common.log_softmax(logits, 0.0, [None])[0, 0].item() == pytest.approx(-0.12693, abs=1e-5)
    biased = common.log_softmax(torch.log(torch.tensor([[0.6, 0.3, 0.1]])), 1.0, [{1: ln(4)}])
    assert biased.exp()[0].tolist() == pytest.approx([0.3158, 0.6316, 0.0526], abs=1e-4)
    assert logits.tolist() == [[2.0, 0.0]]


def test_clip_sides():
    """(A, ratio) -> loss, and whether the gradient flows."""
    cases = [(1, 1.5, -1.2, 0), (1, 0.5, -0.5, 1), (-1, 0.5, 0.8, 0), (-1, 1.5, 1.5, 1)]
    a, ratio, loss, flows = map(torch.tensor, zip(*cases))
    new = ratio.log().requires_grad_()
    value, _, held = common.policy_loss(new, torch.zeros(4), a, clip=0.2)
    value.sum().backward()
    assert value.tolist() == pytest.approx(loss.tolist())
    assert ((new.grad != 0) == flows.bool()).all()
    assert held.float().mean() == 0.5


def test_the_gradient_at_ratio_one_is_the_policy_gradient():
    logits = torch.tensor([1.0, 2.0, 1.0, 1.0], requires_grad=True)
    new = logits.log_softmax(0)[1:2]
    loss, *_ = common.policy_loss(new, new.detach(), torch.ones(1))
    loss.sum().backward()
    assert loss.item() == -1
    assert (-logits.grad).tolist() == pytest.approx([-0.1749, 0.5246, -0.1749, -0.1749], abs=1e-4)


@pytest.mark.parametrize(
    "pi, ref, kl", [((0.7, 0.2, 0.1), (0.4, 0.4, 0.2), 0.183787),
                    ((0.98, 0.01, 0.01), (0.1, 0.45, 0.45), 2.160601)]
)  # fmt: skip
def test_kl_is_exact_in_expectation(pi, ref, kl):
    new, ref = torch.tensor(pi).log(), torch.tensor(ref).log()
    _, k3, _ = common.policy_loss(new, new, torch.zeros(3), ref=ref, kl=1.0)
    assert (k3 >= 0).all() and (torch.tensor(pi) * k3).sum().item() == pytest.approx(kl, abs=1e-5)


def test_the_gradient_of_the_kl_term():
    """In expectation over the policy, k3 as a loss gives pi - ref."""
    logits = torch.tensor([0.7, 0.2, 0.1]).log().requires_grad_()
    new, ref = logits.log_softmax(0), torch.tensor([0.4, 0.4, 0.2]).log()
    loss, *_ = common.policy_loss(new, new.detach(), torch.zeros(3), ref=ref, kl=1.0)
    (torch.tensor([0.7, 0.2, 0.1]) * loss).sum().backward()
    assert logits.grad.tolist() == pytest.approx([0.3, -0.2, -0.1], abs=1e-5)


# Update


class Probe:
    """Stands for the optimizer: keeps the gradient of each step and changes nothing."""

    def __init__(self, model):
        self.model, self.gradients = model, []

    def step(self):
        grads = [p.grad.flatten() for p in self.model.parameters() if p.grad is not None]
        if grads:  # without, AdamW does nothing either
            self.gradients.append(torch.cat(grads).clone())

    def zero_grad(self):
        self.model.zero_grad()


def updated(policy, episodes, advantages, **options):
    """The metrics and gradients of one update, with the policy's args changed for it."""
    args = SimpleNamespace(**{**vars(policy.args), **options})
    run = SimpleNamespace(args=args, policy=policy, optimizer=Probe(policy.model))
    return common.update(run, episodes, advantages), run.optimizer.gradients


@pytest.fixture
def batch(policy, envs):
    torch.manual_seed(5)
    episodes = common.rollout(policy, envs, [1, 1, 2, 2, 3])
    rng = np.random.default_rng(0)
    return episodes, [rng.normal(size=len(e.steps)) for e in episodes]


def plain_loss(policy, episodes, advantages):
    """The same loss, written down again from one full forward pass of each transcript."""
    total, count = 0.0, 0
    for episode, advantage in zip(episodes, advantages):
        logits = policy.model(torch.tensor([episode.token_ids])).logits[0]
        logprobs = (logits / policy.args.temperature).log_softmax(-1)
        for t, step in enumerate(episode.steps):
            for i in range(*step.tokens):
                ratio = (logprobs[i - 1, episode.token_ids[i]] - episode.logprobs[i]).exp()
                total, count = total - ratio * advantage[t], count + 1
    return total / count


def test_gradient_is_that_of_the_definition(policy, batch, monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda p, _: torch.zeros(()))
    metrics, (gradient,) = updated(policy, *batch)
    plain_loss(policy, *batch).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    assert torch.allclose(gradient, expected, atol=1e-6)
    assert metrics["ratio_error"] < 1e-4 and metrics["coverage"] == 1.0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_change_nothing(policy, batch, size):
    whole, (expected,) = updated(policy, *batch)
    parts, (gradient,) = updated(policy, *batch, micro_batch=size)
    assert torch.allclose(gradient, expected, atol=1e-6)
    same = [key for key in whole if not key.endswith("_per_s")]
    assert [parts[k] for k in same] == pytest.approx([whole[k] for k in same], abs=1e-5)


def test_chunks_of_the_output_layer_change_nothing(policy, batch):
    whole = common.token_logprobs(policy, batch[0])
    parts = common.token_logprobs(policy, batch[0], chunk=7)
    for a, b in zip(whole, parts):
        assert torch.allclose(a, b, atol=1e-6)


def test_poison_where_the_policy_has_no_token(policy, batch):
    """Infinite and missing numbers at environment tokens never reach loss, gradient or metrics."""
    episodes, advantages = batch
    _, (expected,) = updated(policy, episodes, advantages)
    for poison in (np.inf, -np.inf, np.nan, 200.0):
        spread = []
        for e, a in zip(episodes, advantages):
            spread.append(np.full(len(e.token_ids), poison))
            own = {i for _, i in e.action_tokens}
            e.logprobs = [x if i in own else poison for i, x in enumerate(e.logprobs)]
            for t, i in e.action_tokens:
                spread[-1][i] = a[t]
        metrics, (gradient,) = updated(policy, episodes, spread)
        assert torch.equal(gradient, expected)
        assert all(np.isfinite(value) for value in metrics.values())


def test_no_credit_no_gradient_no_step(policy, batch):
    episodes, advantages = batch
    metrics, gradients = updated(policy, episodes, [a * 0 for a in advantages])
    assert gradients == [] and metrics["coverage"] == 0 and metrics["grad_norm"] == 0
    metrics, gradients = updated(policy, [], [])
    assert gradients == [] and all(np.isfinite(value) for value in metrics.values())
    metrics, gradients = updated(policy, [common.Episode(1, [])], [np.zeros(0)])
    assert gradients == []


def test_episodes_without_credit_still_count_in_the_mean(policy, batch, monkeypatch):
    """A rollout of a dead group has no gradient of its own but weighs in the denominator."""
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda p, _: torch.zeros(()))
    episodes, advantages = batch
    advantages = [a if i else a * 0 for i, a in enumerate(advantages)]
    _, (gradient,) = updated(policy, episodes, advantages)
    _, (alone,) = updated(policy, episodes[1:], advantages[1:])
    tokens = [len(e.action_tokens) for e in episodes]
    assert torch.allclose(gradient, alone * sum(tokens[1:]) / sum(tokens), atol=1e-6)


def test_token_advantages_equal_step_advantages(policy, batch):
    episodes, advantages = batch
    spread = [np.zeros(len(e.token_ids)) for e in episodes]
    for e, a, per_token in zip(episodes, advantages, spread):
        for t, i in e.action_tokens:
            per_token[i] = a[t]
    _, (by_step,) = updated(policy, episodes, advantages)
    _, (by_token,) = updated(policy, episodes, spread)
    assert torch.equal(by_step, by_token)


def test_kl_gradient_acts_alone_in_a_dead_group(toy_args, envs):
    """With kl > 0 and no credit, the gradient is that of the KL term: zero at first, then not."""
    policy = common.load_policy(SimpleNamespace(**{**vars(toy_args), "kl": 0.3}))
    episodes = common.rollout(policy, envs, [1, 2])
    nothing = [np.zeros(len(e.steps)) for e in episodes]
    metrics, (gradient,) = updated(policy, episodes, nothing)
    assert metrics["kl"] == 0 and not gradient.any()
    with torch.no_grad():
        for p in policy.model.parameters():
            p.mul_(1.05)
    episodes = common.rollout(policy, envs, [1, 2])
    metrics, (gradient,) = updated(policy, episodes, nothing)
    assert metrics["kl"] > 0 and gradient.any()
    exact = [0.0, 0]  # mean k3 over action tokens, from plain forward passes
    for e in episodes:
        ids = torch.tensor([e.token_ids])
        new, ref = (m(ids).logits[0].log_softmax(-1) for m in (policy.core, policy.reference))
        for _, i in e.action_tokens:
            gap = (ref - new)[i - 1, e.token_ids[i]]
            exact = [exact[0] + gap.exp() - gap - 1, exact[1] + 1]
    assert metrics["kl"] == pytest.approx((exact[0] / exact[1]).item(), rel=1e-3)
    (0.3 * exact[0] / exact[1]).backward()
    grads = [p.grad.flatten() for p in policy.core.parameters()]
    norm = torch.linalg.norm(torch.cat(grads))
    assert torch.allclose(gradient, torch.cat(grads) / max(norm, 1.0), atol=1e-5)


def test_second_epoch_has_ratios_and_clips(toy_args, envs):
    """Several optimizer steps on one batch: the ratio leaves 1, and the clip holds tokens back."""
    policy = common.load_policy(toy_args)
    torch.manual_seed(0)
    episodes = common.rollout(policy, envs, [1] * 4)
    advantages = [np.full(len(e.steps), (-1.0) ** i) for i, e in enumerate(episodes)]
    optimizer = torch.optim.AdamW(policy.model.parameters(), 1e-2)
    args = SimpleNamespace(**{**vars(toy_args), "epochs": 3})
    run = SimpleNamespace(args=args, policy=policy, optimizer=optimizer)
    metrics = common.update(run, episodes, advantages)
    assert metrics["clip_fraction"] > 0 and metrics["ratio_error"] < 1e-4


def test_an_update_that_went_wrong_is_not_made(policy, batch):
    episodes, advantages = batch
    weights = [p.clone() for p in policy.model.parameters()]
    for e in episodes:
        e.logprobs = [x - 1 for x in e.logprobs]  # as if another policy had played
    with pytest.raises(FloatingPointError):
        updated(policy, episodes, advantages)
    assert all(map(torch.equal, weights, policy.model.parameters()))


def test_entropy_is_that_of_the_distribution(policy, batch):
    episode = batch[0][0]
    _, entropy = common.token_logprobs(policy, [episode])
    logprobs = policy.model(torch.tensor([episode.token_ids])).logits[0].log_softmax(-1)
    exact = [-(logprobs[i - 1].exp() * logprobs[i - 1]).sum() for _, i in episode.action_tokens]
    assert entropy.tolist() == pytest.approx([x.item() for x in exact], abs=1e-5)


def test_a_forbidden_action(policy, envs):
    """A bias of -inf: never sampled, entropy and gradient finite."""
    words = policy.tokenizer.convert_tokens_to_ids(["take", "drop", "toggle"])
    forbid = dict.fromkeys(words, -np.inf)
    episodes = common.rollout(policy, envs, [1, 2, 3], logit_bias=lambda episode: forbid)
    actions = set(itertools.chain(*([step.action for step in e.steps] for e in episodes)))
    assert actions and not actions & {"take", "drop", "toggle"}
    metrics, (gradient,) = updated(policy, episodes, [np.ones(len(e.steps)) for e in episodes])
    assert np.isfinite(metrics["entropy"]) and gradient.isfinite().all() and gradient.any()
    assert metrics["ratio_error"] < 1e-4
