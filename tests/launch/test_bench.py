"""The arithmetic of the comparisons; and, with torch, that both sides of each do the same work."""

import pytest

from launch.comparison import Comparison, compare


def comparison(log, clock):
    """A peer of 3, 4, 5, ... seconds against our 2."""
    their_seconds = iter([3.0, 4.0, 5.0, 6.0, 7.0])

    def ours():
        clock[0] += 2.0
        log.append("ours")
        return 1

    def theirs():
        clock[0] += next(their_seconds)
        log.append("theirs")
        return 2

    def agreement(own, other):
        assert (own, other) == (1, 2)
        return "as planned"

    return Comparison("work", ours, theirs, agreement, (10, "things"))


def test_runs_alternate_and_the_first_pair_is_for_warmth():
    log, clock = [], [0.0]
    result = compare(comparison(log, clock), 3, lambda: clock[0])
    assert log == ["ours", "theirs", "theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert (result.ours, result.theirs) == ((2.0, 2.0, 2.0), (4.0, 5.0, 6.0))
    assert result.ratios == [2.0, 2.5, 3.0]
    row = "| work | **2.50x** (2.00 to 3.00) | 2.00 s | 5.00 s | 5 | 2 things/s | as planned |"
    assert result.row() == row


def test_different_work_is_refused():
    def disagreement(own, other):
        raise AssertionError(f"{own} is not {other}")

    different = Comparison("work", lambda: 1, lambda: 2, disagreement, (1, "thing"))
    with pytest.raises(AssertionError, match="1 is not 2"):
        compare(different, 3)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["forward", "train", "packed", "generate", "generate_group", "generate_text"])
def test_both_sides_do_the_same_work(name):
    pytest.importorskip("torch", reason="the comparison needs torch: bash tests/run.sh parity")
    from launch import bench_model

    made = bench_model.comparisons(bench_model.SIZES["tiny"])[name]()
    said = made.agreement(made.ours(), made.theirs())
    assert "differ by" in said or "100.0%" in said
