"""Phases that PyTorch tells of, by a clock that only the operations under test advance."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from wording import Wording

from pytest_rlperf.probes import attached
from pytest_rlperf.probes.functions import Phases, probes_for
from pytest_rlperf.probes.sections import UpdateSections
from pytest_rlperf.probes.torch import Backward, Forward, OptimizerSteps, Ranges
from pytest_rlperf.timers import FakeClock, Tree, hierarchical_timer, recording

pytestmark = pytest.mark.torch
torch: Any
optimizer_module: Any
Slow: Any
SlowStep: Any
Figures = dict[str, tuple[float, float]]


@pytest.fixture(autouse=True, scope="module")
def _with_pytorch() -> None:
    """Load PyTorch for the tests: pytest, which only collects them, takes seconds less without."""
    global torch, optimizer_module, Slow, SlowStep
    torch = pytest.importorskip("torch")
    optimizer_module = sys.modules["torch.optim.optimizer"]
    from slow_torch import Slow, SlowStep


def figures(tree: Tree) -> Figures:
    return {phase.path: (phase.count, phase.total_s) for phase in tree.phases(1)}


def state() -> list[object]:
    holders = (
        *(torch.autograd, torch.cuda.nvtx, torch.autograd.profiler.record_function, torch.optim.Optimizer),
        *(torch.Tensor,),
    )
    return [
        [[(name, id(value)) for name, value in vars(holder).items()] for holder in holders],
        dict(optimizer_module._global_optimizer_pre_hooks),
        dict(optimizer_module._global_optimizer_post_hooks),
    ]


@contextmanager
def unchanged(*modules: Any) -> Iterator[None]:
    """Hold that PyTorch is as before, and that no module has a hook or another attribute."""
    parts = [part for module in modules for part in module.modules()]
    before = [state(), [{name: id(value) for name, value in vars(part).items()} for part in parts]]
    try:
        yield
    finally:
        assert [state(), [{name: id(value) for name, value in vars(part).items()} for part in parts]] == before
        assert not any(
            part._forward_hooks or part._forward_pre_hooks or part._forward_hooks_always_called for part in parts
        )


def test_optimizer_steps(clock: FakeClock) -> None:
    """Every optimizer's step is a phase, also of optimizers made meanwhile."""
    net = Slow(clock)
    first = SlowStep(net.parameters(), clock, 2)
    with unchanged(net), attached([OptimizerSteps()]), recording(clock) as tree:
        first.step()
        SlowStep(net.parameters(), clock, 3).step()
    assert figures(tree) == {"step": (2, 5)}
    with recording(clock) as tree:
        first.step()
    assert figures(tree) == {}


def test_backward_passes(clock: FakeClock, wording: Wording) -> None:
    """All three ways to a backward pass are one phase, each entered once."""
    net = Slow(clock, backward_s=3)

    def loss() -> Any:
        return net(torch.ones(4, 2)).sum()

    with unchanged(net), attached([Backward()]), recording(clock) as tree:
        loss().backward()
        torch.autograd.backward(loss())
        assert len(torch.autograd.grad(loss(), list(net.parameters()))) == 2
        with wording.raises(RuntimeError):
            torch.zeros(()).backward()
    assert figures(tree) == {"backward": (4, 9)}


def test_forward_passes_of_named_modules(clock: FakeClock) -> None:
    """A module's passes are timed under its name, those of modules within below it, and a pass that fails ends."""

    class Whole(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = Slow(clock, 1), Slow(clock, 2)

        def forward(self, inputs: Any) -> Any:
            return self.head(self.encoder(inputs))

    whole = Whole()
    named = {"policy": whole, "encoder": whole.encoder, "head": whole.head}
    with unchanged(whole), attached([Forward(named)]), recording(clock) as tree:
        whole(torch.ones(4, 2))
        with pytest.raises(RuntimeError):
            whole(torch.ones(4, 5))
        with hierarchical_timer("after"):
            clock.advance(1)
    assert figures(tree) == {"policy": (2, 4), "policy/encoder": (2, 2), "policy/head": (1, 2), "after": (1, 1)}


def test_a_module_itself_is_a_phase(clock: FakeClock) -> None:
    """Given as the object, alone or among others, it is what its path names: its forward passes."""
    agent = SimpleNamespace(critic=Slow(clock), actor=Slow(clock, 2), target=Slow(clock, 4))
    given: tuple[Phases, Phases] = (
        {"critic": agent.critic, "others": [agent.actor, agent.target]},
        {"critic": "critic", "others": ["actor", "target"]},
    )
    for phases in given:
        with unchanged(agent.critic), attached(probes_for(phases, agent)), recording(clock) as tree:
            for module in (agent.critic, agent.actor, agent.target):
                module(torch.ones(4, 2))
        assert figures(tree) == {"critic": (1, 1), "others": (2, 6)}


def test_record_function_ranges(clock: FakeClock) -> None:
    """Ranges are phases as contexts and as decorators, and PyTorch's own around optimizers are not."""
    net = Slow(clock)
    record = torch.profiler.record_function

    @record("decorated/twice")  # type: ignore[untyped-decorator]
    def decorated() -> None:
        clock.advance(2)

    with unchanged(net), recording(clock) as tree:
        with attached([Ranges()]):
            with record("collect"):
                decorated()
                SlowStep(net.parameters(), clock, 3).step()
            with suppress(KeyError), record("fails"):
                clock.advance(1)
                raise KeyError
        with record("after"):
            clock.advance(1)
    assert figures(tree) == {"collect": (1, 5), "collect/decorated|twice": (1, 2), "fails": (1, 1)}


def test_nvtx_ranges(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVTX ranges that are pushed through torch are phases, of their own thread, and pushed as ever."""
    nvtx = torch.cuda.nvtx
    told: list[object] = []

    def push(msg: object) -> int:
        told.append(msg)
        return len(told)

    monkeypatch.setattr(nvtx, "range_push", push)
    monkeypatch.setattr(nvtx, "range_pop", lambda: told.append(None))
    with unchanged(), attached([Ranges()]), recording(clock) as tree:
        nvtx.range_pop()
        with nvtx.range("step {}", 3):
            clock.advance(1)
            thread = threading.Thread(target=nvtx.range_push, args=("elsewhere",))
            thread.start()
            thread.join()
            assert nvtx.range_push(msg="inner") == 4
            clock.advance(2)
            nvtx.range_pop()
    assert figures(tree) == {"step 3": (1, 3), "step 3/inner": (1, 2)}
    assert told == [None, "step 3", "elsewhere", "inner", None, None]


def sections(agent: object, call: Callable[[], object], clock: FakeClock, calls: int = 1) -> tuple[Figures, float]:
    """Return the figures of ``calls`` of an update, its parts' paths less the first, and what no section has."""
    harvest = UpdateSections(agent)
    assert harvest
    told = harvest.around(call)
    modules = [module for module, _ in harvest._parts.modules]
    with unchanged(*modules), attached([harvest]), recording(clock) as tree:
        for _ in range(calls):
            with hierarchical_timer("update"):
                told()
    (root,) = (phase for phase in tree.phases(1) if phase.path == "update")
    below = {path.partition("/")[2]: figure for path, figure in figures(tree).items() if "/" in path}
    assert sum(total for path, (_, total) in below.items() if "/" not in path) + root.self_s == pytest.approx(
        root.total_s
    )
    return below, root.self_s


def top(found: Figures) -> Figures:
    return {path: figure for path, figure in found.items() if "/" not in path}


class Rows:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def sample(self, size: int) -> Any:
        self.clock.advance(1)
        return torch.ones(size, 2)


class Times(SimpleNamespace):
    """The parts of one agent's update, each with a time of its own that distinguishes it from the others."""

    convert, target_actor, target, target_math = 0.5, 0.0, 0.0, 0.25


class Nets:
    """Networks, optimizers and a buffer as of CleanRL's SAC: two critics, one optimizer of both."""

    def __init__(self, clock: FakeClock) -> None:
        torch.manual_seed(0)
        self.clock = clock
        self.actor = Slow(clock, 2, 8)
        self.qf1, self.qf2 = Slow(clock, 16, 32, 4), Slow(clock, 16, 32, 4)
        self.qf1_target, self.qf2_target = Slow(clock, 64, inputs=4), Slow(clock, 64, inputs=4)
        self.qf1_target.load_state_dict(self.qf1.state_dict())
        self.qf2_target.load_state_dict(self.qf2.state_dict())
        self.q_optimizer = SlowStep([*self.qf1.parameters(), *self.qf2.parameters()], clock, 128)
        self.actor_optimizer = SlowStep(self.actor.parameters(), clock, 256)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.a_optimizer = SlowStep([self.log_alpha], clock, 512)
        self.rb: Any = Rows(clock)


def cleanrl(nets: Nets, *, delay: int = 1, autotune: bool = True, inline: bool = True) -> Callable[[], None]:
    """Return a thunk that does an update as CleanRL's script does, all of it in variables of a closure."""
    clock, actor, rb = nets.clock, nets.actor, nets.rb
    qf1, qf2, qf1_target, qf2_target = nets.qf1, nets.qf2, nets.qf1_target, nets.qf2_target
    q_optimizer, actor_optimizer, a_optimizer = nets.q_optimizer, nets.actor_optimizer, nets.a_optimizer
    log_alpha = nets.log_alpha
    step = iter(range(1000))

    def update() -> None:
        global_step = next(step)
        data = rb.sample(4)
        clock.advance(0.5)
        with torch.no_grad():
            next_actions = actor(data)
            target = torch.min(qf1_target(data, next_actions), qf2_target(data, next_actions))
            clock.advance(0.25)
        loss = ((qf1(data, data) - target) ** 2).mean() + ((qf2(data, data) - target) ** 2).mean()
        q_optimizer.zero_grad()
        loss.backward()
        q_optimizer.step()
        if global_step % delay == 0:
            for _ in range(delay):
                pi = actor(data)
                actor_loss = -torch.min(qf1(data, pi), qf2(data, pi)).mean()
                actor_optimizer.zero_grad()
                actor_loss.backward()
                actor_optimizer.step()
                if autotune:
                    with torch.no_grad():
                        log_pi = actor(data)
                    alpha_loss = (-log_alpha.exp() * log_pi).mean()
                    a_optimizer.zero_grad()
                    alpha_loss.backward()
                    a_optimizer.step()
        if inline:
            for parameter, target_parameter in zip(qf1.parameters(), qf1_target.parameters(), strict=True):
                target_parameter.data.copy_(0.1 * parameter.data + 0.9 * target_parameter.data)
            clock.advance(1024)
            for parameter, target_parameter in zip(qf2.parameters(), qf2_target.parameters(), strict=True):
                target_parameter.data.copy_(0.1 * parameter.data + 0.9 * target_parameter.data)

    return update


# Powers of two add up to no other sum: what a label has timed can be read off its total.
TARGET_Q = 2 + 2 * 64 + 0.25
CRITIC = 2 * 16 + 2 * 32 + 128
ACTOR = 2 + 2 * 16 + 2 * 32 + 8 + 256
ALPHA = 2 + 512


def test_an_update_of_variables(clock: FakeClock) -> None:
    """A thunk over a script's variables is cut into its six parts, which time what they say and add up."""
    found, rest = sections(update := cleanrl(Nets(clock)), update, clock)
    assert top(found) == {
        "sample": (1, 1.5),
        "target_q": (1, TARGET_Q),
        "critic": (1, CRITIC),
        "actor": (1, ACTOR),
        "alpha": (1, ALPHA),
        "polyak": (1, 1024),
    }
    assert rest == 0
    assert {path: figure for path, figure in found.items() if "/" in path} == {
        "target_q/forward": (3, 130),
        "critic/forward": (2, 32),
        "critic/backward": (1, 64),
        "critic/step": (1, 128),
        "actor/forward": (3, 34),
        "actor/backward": (1, 72),
        "actor/step": (1, 256),
        "alpha/forward": (1, 2),
        "alpha/backward": (1, 0),
        "alpha/step": (1, 512),
    }


def test_what_an_update_leaves_out(clock: FakeClock) -> None:
    """Without a learned temperature there is no such part; what follows the last step is polyak, whatever it does."""
    nets = Nets(clock)
    step = cleanrl(nets, autotune=False, inline=False)

    def update() -> None:
        step()
        clock.advance(2048)

    found, rest = sections(update, update, clock)
    parts = {"sample": (1, 1.5), "target_q": (1, TARGET_Q), "critic": (1, CRITIC), "actor": (1, ACTOR)}
    assert top(found) == {**parts, "polyak": (1, 2048)}
    assert rest == 0


def test_a_delayed_actor(clock: FakeClock) -> None:
    """An actor that is updated every other time, twice, is an entry in every other update."""
    update = cleanrl(Nets(clock), delay=2)
    found, rest = sections(update, update, clock, calls=4)
    assert top(found) == {
        "sample": (4, 4 * 1.5),
        "target_q": (4, 4 * TARGET_Q),
        "critic": (4, 4 * CRITIC),
        "actor": (2, 4 * ACTOR),
        "alpha": (2, 4 * ALPHA),
        "polyak": (4, 4 * 1024),
    }
    assert rest == 0


class Agent(Nets):
    def update(self) -> None:
        cleanrl(self)()


def test_an_update_of_a_method(clock: FakeClock) -> None:
    """The parts of an agent are found by its attributes, in it and in its method, bound or partial."""
    agent = Agent(clock)
    found, rest = sections(agent, agent.update, clock)
    assert (found["polyak"], found["alpha"], found["actor"], rest) == ((1, 1024), (1, ALPHA), (1, ACTOR), 0)
    by_method, _ = sections(agent.update, agent.update, clock)
    by_partial, _ = sections(functools.partial(agent.update), agent.update, clock)
    assert top(by_method) == top(by_partial) == top(found)


class FixedRows:
    __slots__ = ("clock",)

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def sample(self, size: int) -> Any:
        self.clock.advance(1)
        return torch.ones(size, 2)


def test_a_read_only_buffer(clock: FakeClock) -> None:
    """A buffer of Rust's has a stand-in where the agent or the closure has it, and sampling is a part by itself."""
    nets = Nets(clock)
    nets.rb = rb = FixedRows(clock)
    update = cleanrl(nets)
    found, _ = sections(update, update, clock)
    cells: Any = vars(type(update))["__closure__"].__get__(update)
    agent: Any = Agent(clock)
    agent.rb = rb
    of_agent, _ = sections(agent, agent.update, clock)
    assert (found["sample"], of_agent["sample"]) == ((1, 1.5), (1, 1.5))
    assert any(cell.cell_contents is rb for cell in cells)
    assert agent.rb is rb


def test_an_update_that_raises(clock: FakeClock) -> None:
    """The parts that ran are counted, the exception comes through, and nothing stays attached or open."""
    nets = Nets(clock)
    nets.qf2.forward_s = 0
    step = cleanrl(nets)

    class BrokenError(Exception):
        """Ends an update."""

    errors = iter((BrokenError, KeyboardInterrupt))

    def broken(*_: object) -> None:
        clock.advance(4096)
        raise next(errors)

    harvest = UpdateSections(step)
    told = harvest.around(step)
    handle = nets.qf2.layer.register_forward_hook(broken)
    with attached([harvest]), recording(clock) as tree:
        for error in (BrokenError, KeyboardInterrupt):
            with pytest.raises(error), hierarchical_timer("update"):
                told()
        handle.remove()
        with hierarchical_timer("after"):
            told()
    found = figures(tree)
    assert {path: found[path] for path in ("update/target_q", "update/critic", "after/critic", "after/actor")} == {
        "update/target_q": (2, 2 * TARGET_Q),
        "update/critic": (2, 2 * (16 + 4096)),
        "after/critic": (1, CRITIC - 16),
        "after/actor": (1, ACTOR - 16),
    }
    assert not nets.qf2._forward_hooks


def test_nothing_to_cut_at(clock: FakeClock) -> None:
    """An agent without optimizers has no sections."""
    assert not UpdateSections(SimpleNamespace(actor=Slow(clock)))
    assert not UpdateSections(3)


def shares(agent: object, update: Callable[[], object], calls: int = 20) -> tuple[list[str], float]:
    """Return the sections of a real update, in their order, and the share of its time that is in none."""
    harvest = UpdateSections(agent)
    told = harvest.around(update)
    for _ in range(3):
        update()
    with unchanged(*(module for module, _ in harvest._parts.modules)), attached([harvest]), recording() as tree:
        for _ in range(calls):
            with hierarchical_timer("update"):
                told()
    phases = tree.phases(calls)
    assert all(phase.count == 1 for phase in phases if phase.depth == 1)
    return [phase.name for phase in phases if phase.depth == 1], phases[0].self_s / phases[0].total_s


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_sac_of_rlox() -> None:
    """Its buffer is Rust's; its parts add up to its update within 2 %."""
    sac = pytest.importorskip("rlox.algorithms.sac")
    model = sac.SAC("Pendulum-v1", learning_starts=10, buffer_size=5000, seed=0)
    model.train(300)
    buffer = model.buffer
    names, rest = shares(model, lambda: model._update(300))
    assert names == ["sample", "target_q", "critic", "actor", "alpha", "polyak"]
    assert rest < 0.02
    assert model.buffer is buffer
    assert len(buffer) > 0
