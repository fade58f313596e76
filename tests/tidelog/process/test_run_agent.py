"""How busy a process keeps a core."""

from tidelog.process.run_agent import CpuShare


class _Clocks:
    def __init__(self) -> None:
        self.cpu_s = 3.0
        self.now_s = 100.0

    def after(self, wall_s: float, cpu_s: float) -> None:
        self.now_s += wall_s
        self.cpu_s += cpu_s

    def share(self) -> CpuShare:
        return CpuShare(lambda: self.cpu_s, lambda: self.now_s)


def test_the_share_is_that_of_the_time_since_it_was_last_asked() -> None:
    clocks = _Clocks()
    busy = clocks.share()
    clocks.after(10.0, cpu_s=2.5)
    assert busy.share() == 0.25
    clocks.after(2.0, cpu_s=1.5)
    assert busy.share() == 0.75


def test_questions_in_quick_succession_get_the_same_answer_and_lose_no_time() -> None:
    clocks = _Clocks()
    busy = clocks.share()
    clocks.after(4.0, cpu_s=2.0)
    assert busy.share() == 0.5
    clocks.after(0.5, cpu_s=0.5)
    assert busy.share() == 0.5
    clocks.after(0.5, cpu_s=0.5)
    assert busy.share() == 1.0


def test_more_threads_than_one_core_can_run_are_no_more_than_busy() -> None:
    clocks = _Clocks()
    busy = clocks.share()
    clocks.after(2.0, cpu_s=4.0)
    assert busy.share() == 1.0
