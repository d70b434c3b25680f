"""The demos of `make demo`, and the problem that the first one divides."""

from pathlib import Path

import pytest
from matplotlib.image import imread
from msgspec import structs

from examples import allocate_demo, day_demo
from gavel.cli.policies.problem_file import read_problem
from policies.audit import audit
from policies.registry import names, resolve


def test_the_demo_shows_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo prints shares of twenty jobs under four policies, a comparison and the gain, and saves a picture."""
    monkeypatch.setattr(allocate_demo, "PICTURE", tmp_path / "out" / "demo.png")
    allocate_demo.main()
    output = capsys.readouterr().out
    for words in ("las+blind", "las+packing", "makespan", "tabular", "× the speed", "out/demo.png"):
        assert words in output
    assert imread(tmp_path / "out" / "demo.png").std() > 0.05


def test_knowing_the_rates_pays() -> None:
    """As the demo claims, no job is slower than under the blind policy, and each gains at least a tenth."""
    problem = read_problem(str(allocate_demo.PROBLEM))
    aware, blind = (problem.rates @ resolve(spec)(problem).time_share for spec in ("las", "las+blind"))
    assert (aware / blind).min() > 1.1


@pytest.mark.parametrize("name", [name for name in names() if name != "allox"])
def test_the_example_suits_every_policy(name: str) -> None:
    """mixed_cluster.yaml has every fact that a policy needs, except for allox, which takes jobs of one GPU only."""
    problem = read_problem(str(allocate_demo.PROBLEM))
    assert audit(problem, resolve(name)(problem)) == []


def test_the_day_demo_compares_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo prints a comparison of three policies over a day, the gains, and the paths of its pictures."""
    monkeypatch.setattr(day_demo, "PICTURES", tmp_path / "out" / "day_demo")
    monkeypatch.setattr(day_demo, "DAY", structs.replace(day_demo.DAY, hours=4.0))
    day_demo.main()
    output = capsys.readouterr().out
    places = [output.index(words) for words in ("mean", "las+blind", "× shorter", "out/day_demo/jct.png")]
    assert places == sorted(places)
    pictures = sorted((tmp_path / "out" / "day_demo").iterdir())
    assert len(pictures) == 5
    assert all(imread(picture).std() > 0.02 for picture in pictures)
