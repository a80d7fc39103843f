"""Score plan's predictions against published measurements.

    python benchmarks/published.py FILE [--predictions OUT] [--json]

FILE has the schema of ``published_runs.json``. Predictions use the description of a run alone; its values
are read only to be compared with. ``--predictions`` writes a line ``{"id", "metric", "value"}`` for every
metric that a case names (or, where it names none, that plan can give).
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from published_metrics import predictions


@dataclass(frozen=True)
class Score:
    """One metric of one case."""

    id: str
    group: str
    metric: str
    predicted: float
    measured: float
    within: bool | None

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1 if self.measured else 0.0


def within(predicted: float, metric: dict[str, Any]) -> bool | None:
    """Whether the prediction is inside the metric's own tolerance; None where it states none."""
    value = metric["value"]
    if "max_value_plus" in metric:
        return bool(predicted <= value + metric["max_value_plus"])
    if "tol_abs" in metric:
        return bool(abs(predicted - value) <= metric["tol_abs"])
    if "tol_rel" in metric:
        return bool(abs(predicted / value - 1) <= metric["tol_rel"])
    return None


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's coefficient of predicted and measured values; None for fewer than three."""
    if len(pairs) < 3:
        return None
    first, second = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    mean = (len(pairs) + 1) / 2
    covariance = sum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    spread = [sum((rank - mean) ** 2 for rank in ranks) for ranks in (first, second)]
    return covariance / (spread[0] * spread[1]) ** 0.5 if spread[0] and spread[1] else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, equal values sharing the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for position in range(at, end + 1):
            ranks[order[position]] = (at + end) / 2 + 1
        at = end + 1
    return ranks


def score(cases: Iterable[dict[str, Any]]) -> tuple[list[Score], list[dict[str, Any]], list[str]]:
    """Scores of all metrics with a value, all predictions, and what could not be predicted."""
    scores: list[Score] = []
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    for case in cases:
        try:
            found = predictions(case)
        except (
            ValueError,
            KeyError,
            TypeError,
        ) as error:  # a description that is no job: said, not passed over
            missing.append(f"{case['id']}: {type(error).__name__}: {error}")
            continue
        metrics = case.get("metrics") or [{"name": name} for name in found]
        for metric in metrics:
            name = metric["name"]
            if name not in found:
                missing.append(f"{case['id']}: {name}")
                continue
            rows.append({"id": case["id"], "metric": name, "value": found[name]})
            if metric.get("value") is not None:
                inside = within(found[name], metric)
                group = case.get("group") or ""
                scores.append(Score(case["id"], group, name, found[name], metric["value"], inside))
    return scores, rows, missing


def summary(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Per group and metric: n, mean error, bias, worst case, share in tolerance, rank correlation."""
    groups: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for item in scores:
        groups[item.group, item.metric].append(item)
    rows = []
    for (group, metric), items in groups.items():
        worst = max(items, key=lambda item: abs(item.error))
        judged = [item.within for item in items if item.within is not None]
        rows.append(
            {
                "group": group,
                "metric": metric,
                "n": len(items),
                "mape": sum(abs(item.error) for item in items) / len(items),
                "bias": sum(item.error for item in items) / len(items),
                "worst": worst.error,
                "worst_id": worst.id,
                "within_tolerance": sum(judged) / len(judged) if judged else None,
                "rank_correlation": rank_correlation([(item.predicted, item.measured) for item in items]),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--predictions", type=Path, help="write every prediction as a line of JSON")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_args()
    data = json.loads(arguments.file.read_text(encoding="utf-8"))
    cases = data["cases"] if isinstance(data, dict) else data
    scores, rows, missing = score(cases)
    if arguments.predictions:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        arguments.predictions.write_text(lines, encoding="utf-8")
    table = summary(scores)
    if arguments.json:
        print(json.dumps({"groups": table, "missing": missing}))
        return
    print(f"{'group':16}{'metric':26}{'n':>5}{'MAPE':>8}{'bias':>8}{'worst':>8}{'in tol.':>9}{'rank':>7}")
    for row in table:
        inside = "" if row["within_tolerance"] is None else f"{row['within_tolerance']:.0%}"
        rank = "" if row["rank_correlation"] is None else f"{row['rank_correlation']:.2f}"
        print(
            f"{row['group']:16}{row['metric']:26}{row['n']:5}{row['mape']:8.1%}{row['bias']:8.1%}"
            f"{row['worst']:8.1%}{inside:>9}{rank:>7}  {row['worst_id']}"
        )
    if missing:
        print(f"\nnot predicted: {len(missing)}", *missing[:20], sep="\n  ", file=sys.stderr)


if __name__ == "__main__":
    main()
