"""Random draws: each depends on the seed and the job's id, and on nothing else."""

from hashlib import blake2b

import numpy as np
import pytest

from policies.engine.chance import draw

IDS = tuple(f"job-{m}" for m in range(2_000))


def test_a_draw_does_not_depend_on_other_jobs() -> None:
    """A job draws the same when others come, go or change places."""
    all_draws = draw(7, IDS, 3)
    some_draws = draw(7, IDS[500:100:-7], 3)
    assert np.array_equal(some_draws, all_draws[500:100:-7])
    assert np.array_equal(draw(7, IDS, 3), all_draws)


def test_draws_do_not_change_between_releases() -> None:
    """Draws are the same on every machine and in every release, so that old simulations can be repeated."""
    digest = blake2b(b"job-1", key=b"7", digest_size=8).digest()
    assert draw(7, ["job-1"]).item() == (int.from_bytes(digest, "little") >> 11) / 2**53
    assert draw(7, ["job-1", "job-2"]).ravel() == pytest.approx([0.2202501334, 0.1214825125], abs=1e-9)


@pytest.mark.parametrize("per_id", [1, 2, 8, 9, 20])
def test_draws_look_like_chance(per_id: int) -> None:
    """Draws are uniform between 0 and 1, and uncorrelated between jobs, places and seeds."""
    drawn = draw(3, IDS, per_id)
    assert drawn.shape == (len(IDS), per_id)
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    assert drawn.mean(axis=0) == pytest.approx([0.5] * per_id, abs=0.04)
    assert drawn.std(axis=0) == pytest.approx([12**-0.5] * per_id, abs=0.02)
    everything = np.hstack([drawn, draw(4, IDS, per_id), draw(-3, IDS, per_id)])
    together = np.corrcoef(everything.T) - np.eye(3 * per_id)
    assert np.abs(together).max() < 0.12
    assert np.abs(np.corrcoef(drawn[1:, 0], drawn[:-1, 0])[0, 1]) < 0.12


def test_no_jobs_no_draws() -> None:
    """Without jobs there is an empty table of draws."""
    assert draw(1, [], 2).shape == (0, 2)
