"""TorchRL's profiling: named ranges that cost nothing when off, traces of the workers, and `timeit`."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import ONE_CALL
from example import OK, Example

from pytest_rlperf.compat import torchrl
from pytest_rlperf.compat.workers import trace_workers
from pytest_rlperf.timers import recording
from seeds.programs import run_python


def imported_anew(monkeypatch: pytest.MonkeyPatch, setting: str | None) -> Any:
    """Import the module a second time, with ``TORCHRL_PROFILING`` as given."""
    if setting is None:
        monkeypatch.delenv("TORCHRL_PROFILING", raising=False)
    else:
        monkeypatch.setenv("TORCHRL_PROFILING", setting)
    spec = importlib.util.find_spec(torchrl.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("setting", [None, "0", "yes"])
def test_named_ranges_that_cost_nothing_when_off(setting: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decorated function is the function and all scopes are one, by their names and by ours, also when set later."""
    theirs = imported_anew(monkeypatch, setting)

    def step() -> None: ...

    monkeypatch.setenv("TORCHRL_PROFILING", "1")
    assert theirs._maybe_record_function_decorator("env.step")(step) is step
    assert theirs._maybe_record_function("a") is theirs._maybe_record_function("b") is theirs._NULL_CONTEXT
    assert run_python(
        """
        import os
        from pytest_rlperf import timers

        def step(): ...

        os.environ["RLPERF_TIMERS"] = "on"
        print(timers.timed(step) is step, timers.timed(name="env.step")(step) is step)
        print(timers.hierarchical_timer("a") is timers.hierarchical_timer("b"))
        with timers.hierarchical_timer("a"):
            pass
        print(timers.snapshot().root.children)
        """
    ) == ["True True", "True", "()"]


@pytest.mark.torch
def test_a_switch_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It silences and re-arms ranges and scopes that were armed at import, and warns where they were not."""
    torch = pytest.importorskip("torch")
    theirs = imported_anew(monkeypatch, "1")

    def step() -> None:
        with theirs._maybe_record_function("inline"):
            pass

    decorated = theirs._maybe_record_function_decorator("decorated")(step)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for on in (True, False, True):
            theirs.set_profiling_enabled(on)
            decorated()
    names = [event.name for event in profile.events()]
    assert [name for name in names if name in ("decorated", "inline")] == ["decorated", "inline"] * 2

    unarmed = imported_anew(monkeypatch, None)
    with pytest.warns(UserWarning, match="TORCHRL_PROFILING=1 was not in the environment"):
        unarmed.set_profiling_enabled(True)
    assert unarmed._maybe_record_function("inline") is unarmed._NULL_CONTEXT
    program = """
        import warnings
        from pytest_rlperf import timers

        for turn in (timers.enable, timers.disable, timers.enable):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                turn()
            with timers.hierarchical_timer("step"):
                pass
            print(len(caught), *(timing.count for timing in timers.snapshot().root.children))
        """
    assert run_python(program, RLPERF_TIMERS="standby") == ["0 1", "0 1", "0 2"]
    assert run_python(program) == ["1", "1", "1"]


def test_every_process_and_every_ray_actor_is_armed_like_the_driver() -> None:
    """Children inherit both variables, and `child_environment()` has both for Ray's ``runtime_env``."""
    program = """
        import multiprocessing, subprocess, sys, os
        from pytest_rlperf import timers
        from pytest_rlperf.compat import torchrl

        def state(queue):
            queue.put((timers.ARMED, timers.is_recording(), torchrl._PROFILING_ALLOWED))

        print(timers.ARMED, timers.is_recording(), torchrl._PROFILING_ALLOWED)
        queue = multiprocessing.get_context("fork").SimpleQueue()
        child = multiprocessing.get_context("fork").Process(target=state, args=(queue,))
        child.start()
        print(*queue.get())
        child.join()
        code = '''
        from pytest_rlperf import timers
        from pytest_rlperf.compat import torchrl
        print(timers.ARMED, timers.is_recording(), torchrl._PROFILING_ALLOWED)
        '''.replace("        ", "")
        bare = {k: v for k, v in os.environ.items() if k not in ("RLPERF_TIMERS", "TORCHRL_PROFILING")}
        for environment in (os.environ, {**bare, **timers.child_environment()}):  # a child's, and a Ray actor's
            print(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout)
        """
    for variables, armed in (
        ({"RLPERF_TIMERS": "on", "TORCHRL_PROFILING": "1"}, "True True True"),
        ({"RLPERF_TIMERS": "standby"}, "True False False"),
        ({}, "False False False"),
    ):
        assert [line for line in run_python(program, **variables) if line] == [armed] * 4


def collect(env: Any, traces: Any, rollouts: int) -> None:
    for _ in range(rollouts):
        for _ in range(4):
            env.step(np.zeros((env.num_envs, 1), np.float32))
        traces.rollout()


@pytest.mark.torch
@pytest.mark.parametrize("library", ["gymnasium", "stable_baselines3"])
def test_a_trace_of_the_worker_that_does_the_rollout(library: str, tmp_path: Path) -> None:
    """Chosen workers of a vector env write what they ran in some rollouts, and after an early end what there is."""
    gymnasium = pytest.importorskip("gymnasium")
    made = [lambda: gymnasium.make("Pendulum-v1")] * 3
    if library == "gymnasium":
        env = gymnasium.vector.AsyncVectorEnv(made)
    else:
        pytest.importorskip("stable_baselines3")
        from stable_baselines3.common.vec_env import SubprocVecEnv

        env = SubprocVecEnv(made, start_method="fork")
    path = tmp_path / "traces" / "worker_{worker_idx}.json"
    try:
        env.reset()
        for workers, rollouts in (([0, 2], 5), ([1], 2)):
            with trace_workers(env, workers=workers, num_rollouts=3, warmup_rollouts=1, save_path=path) as traces:
                collect(env, traces, rollouts)
        with trace_workers(env, workers=[1], warmup_rollouts=2, save_path=tmp_path / "never.json") as traces:
            collect(env, traces, 1)
        collect(env, traces, 1)
        with pytest.raises(ValueError, match="workers 0 to 2"):
            trace_workers(env, workers=[3])
    finally:
        env.close()
    assert [each.name for each in sorted((tmp_path / "traces").iterdir())] == [f"worker_{n}.json" for n in range(3)]
    assert [steps_in(tmp_path / "traces" / f"worker_{n}.json") for n in range(3)] == [8, 4, 8]
    assert not (tmp_path / "never.json").exists()


def steps_in(path: Path) -> int:
    """Return how many steps of Pendulum a Chrome trace has."""
    names = [str(each.get("name")) for each in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]]
    return sum("pendulum.py" in name and name.endswith(": step") for name in names)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"num_rollouts": 2, "warmup_rollouts": 2}, "less than num_rollouts=2"),
        ({"warmup_rollouts": -1}, "at least 0"),
        ({"workers": [0, 1], "save_path": "one.json"}, "needs {worker_idx}"),
    ],
)
def test_traces_of_workers_that_make_no_sense(given: dict[str, Any], error: str) -> None:
    """Arguments are checked before anything is traced, and what has no workers is named."""
    with pytest.raises(ValueError, match=error):
        trace_workers(object(), **given)
    with pytest.raises(TypeError, match="object has no workers that can be traced"):
        trace_workers(object())


@pytest.mark.torch
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_traces_of_collectors(processes: int, tmp_path: Path) -> None:
    """A collector's workers are traced by TorchRL's own hook, and the one that was there before is put back."""
    collectors = pytest.importorskip("torchrl.collectors")
    if not hasattr(collectors.BaseCollector, "enable_profile"):
        pytest.skip("this TorchRL profiles no workers")
    from torchrl.envs import GymEnv

    def make() -> Any:
        return GymEnv("CartPole-v1")

    given: dict[str, Any] = {"frames_per_batch": 20 * processes, "total_frames": 120 * processes}
    given["post_collect_hook"] = Noted(tmp_path)
    if processes == 1:
        collector = collectors.Collector(make, None, **given)
    else:
        collector = collectors.MultiSyncCollector([make] * processes, None, **given)
    path = tmp_path / "worker_{worker_idx}.json"
    try:
        with trace_workers(collector, workers=range(processes), num_rollouts=10, save_path=path):
            batches = iter(collector)
            for _ in range(3):
                next(batches)
        assert not list(tmp_path.glob("noted*"))
        for _ in range(2):
            next(batches)
    finally:
        collector.shutdown()
    assert sorted(each.name for each in tmp_path.glob("worker*")) == [f"worker_{n}.json" for n in range(processes)]
    assert len(list(tmp_path.glob("noted*"))) == processes
    for file in tmp_path.glob("worker*"):
        assert json.loads(file.read_text(encoding="utf-8"))["traceEvents"]


class Noted:
    """A hook that leaves a file for each process that it ran in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, batch: Any) -> None:
        (self.directory / f"noted-{os.getpid()}").touch()


@pytest.mark.torch
def test_the_timeline_of_one_measured_call(tmp_path: Path) -> None:
    """`--rlperf-trace` writes each test's phases as ranges, and when the env's worker processes ran meanwhile."""
    pytest.importorskip("gymnasium")
    example = Example(
        tmp_path,
        {
            "test_it.py": """
                import gymnasium

                def make():
                    return gymnasium.make("CartPole-v1")

                def test_step(rlperf_vecenv_step):
                    rlperf_vecenv_step(lambda: gymnasium.vector.AsyncVectorEnv([make] * 2))
                """
        },
    )
    example.pytest(*ONE_CALL, "--rlperf-trace=traces", code=OK)
    (file,) = (example.root / "traces").iterdir()
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    assert {"call", "action", "env_step"} <= {each["name"] for each in events if each["ph"] == "X"}
    processes = [each["args"]["name"].partition(" (")[0] for each in events if each["name"] == "process_name"]
    if Path("/proc/self/schedstat").exists():
        assert sorted(processes) == ["Worker<AsyncVectorEnv>-0", "Worker<AsyncVectorEnv>-1", "test_it.py::test_step"]


def test_timeit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts, calls and marks are one register, which is printed as theirs is, read as a dictionary, and erased."""
    monkeypatch.setattr(torchrl.timeit, "_REG", {})
    monkeypatch.setattr(torchrl.timeit, "_MARKS", {})
    monkeypatch.setattr(torchrl.timeit, "_printevery_count", 0)
    monkeypatch.setattr(torchrl._logger, "level", 0)
    times = iter([1.0, 1.5, 2.0, 3.0, 4.0, 4.25])
    monkeypatch.setattr(torchrl, "_clock", lambda: next(times))
    with torchrl.timeit("collect"):
        pass
    torchrl.timeit("collect")(lambda: None)()
    torchrl.timeit.mark_start("update")
    torchrl.timeit.mark_end("update")
    text = (
        "epoch -- collect took 750.0000 msec (total =  1.5000 sec since last reset).\n"
        "epoch -- update took 250.0000 msec (total =  0.2500 sec since last reset)."
    )
    assert torchrl.timeit.print(prefix="epoch") == text
    for _ in range(4):
        torchrl.timeit.printevery(num_prints=2, total_count=4, prefix="epoch")
    assert capsys.readouterr().out == f"{text}\n" * 3
    assert torchrl.timeit.todict() == {"collect": 0.75, "update": 0.25}
    assert torchrl.timeit.todict(percall=False, prefix="time") == {"time/collect": 1.5, "time/update": 0.25}
    torchrl.timeit.erase()
    assert torchrl.timeit.todict() == {"collect": 0.0, "update": 0.0}


def test_their_private_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that set TorchRL's switches by name find them obeyed, so that theirs run on this module."""
    armed = imported_anew(monkeypatch, None)
    monkeypatch.setattr(armed, "_PROFILING_ALLOWED", True)
    monkeypatch.setattr(armed, "_PROFILING_ENABLED", True)

    def step() -> int:
        return 5

    decorated = armed._maybe_record_function_decorator("env.step")(step)
    assert decorated is not step
    assert decorated.__wrapped__ is step
    assert decorated.__name__ == "step"
    armed.set_profiling_enabled(False)
    assert armed._PROFILING_ENABLED is False
    assert decorated() == 5
    assert isinstance(armed._maybe_timeit("update"), armed.timeit)


@pytest.mark.torch
def test_code_with_ranges_and_timers_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile makes one graph of it, with no range and no timer within, also after timers have recorded."""
    torch = pytest.importorskip("torch")
    importlib.import_module("torch._dynamo")
    with recording():
        pass
    armed = imported_anew(monkeypatch, "1")

    def step(x: Any) -> Any:
        with armed._maybe_record_function("policy"), armed._maybe_timeit("policy"):
            return x + 1

    compiled = torch.compile(armed._maybe_record_function_decorator("step")(step), backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert armed.timeit.todict() == {}
