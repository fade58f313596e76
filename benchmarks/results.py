"""Measurements, stored as JSON next to the page that is written from them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.figures import Figures, Spread

FILE = Path(__file__).with_name("results.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One workload on one system in one round. It has no figures if it has an `error`."""

    workload: str
    system: str
    round: int
    figures: Figures = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """`about`: machine, versions, date."""

    about: Mapping[str, str]
    measurements: Sequence[Measurement]

    def spread(self, workload: str, system: str, figure: str) -> Spread | None:
        """None if nothing was measured."""
        found = [one for one in self.measurements if (one.workload, one.system) == (workload, system)]
        return Spread.of([one.figures[figure] for one in found if figure in one.figures])

    def median(self, workload: str, system: str, figure: str) -> float | None:
        spread = self.spread(workload, system, figure)
        return spread.median if spread else None

    def ratio(self, workload: str, over: tuple[str, str], under: tuple[str, str]) -> Spread | None:
        """The ratio of two figures (system, name), round by round, so that a round's speed cancels out."""
        rounds = sorted({one.round for one in self.measurements})
        ratios = []
        for number in rounds:
            pair = [self._of_round(workload, system, figure, number) for system, figure in (over, under)]
            if pair[0] is not None and pair[1]:
                ratios.append(pair[0] / pair[1])
        return Spread.of(ratios)

    def systems(self, workload: str) -> list[str]:
        return list(dict.fromkeys(one.system for one in self.measurements if one.workload == workload))

    def errors(self, workload: str, system: str) -> list[str]:
        found = [one for one in self.measurements if (one.workload, one.system) == (workload, system)]
        return list(dict.fromkeys(one.error for one in found if one.error))

    def _of_round(self, workload: str, system: str, figure: str, number: int) -> float | None:
        for one in self.measurements:
            if (one.workload, one.system, one.round) == (workload, system, number) and figure in one.figures:
                return one.figures[figure]
        return None


def save(results: Results, file: Path = FILE) -> None:
    document = {"about": results.about, "measurements": [_rounded(one) for one in results.measurements]}
    file.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


def load(file: Path = FILE) -> Results:
    document = json.loads(file.read_text())
    return Results(
        about=document["about"], measurements=[Measurement(**one) for one in document["measurements"]]
    )


def _rounded(measurement: Measurement) -> dict[str, object]:
    """Leaves out NaN. Rounds to six digits, more than any measurement has."""
    figures = {name: float(f"{value:.6g}") for name, value in measurement.figures.items() if value == value}
    return {**asdict(measurement), "figures": figures}
