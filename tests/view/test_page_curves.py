"""What is drawn of many values: few points, and none that matters is lost."""

from __future__ import annotations

import pytest

from vdisagg.view.page import curves


def test_a_distribution_rises_by_one_part_per_value() -> None:
    assert curves.cdf([3.0, 1.0, 2.0, 2.0]) == [(1.0, 25.0), (2.0, 50.0), (2.0, 75.0), (3.0, 100.0)]


def test_a_distribution_of_many_keeps_its_ends_and_its_whole_tail() -> None:
    points = curves.cdf([float(i) for i in range(10_000)])
    assert points[0] == (0.0, 0.01)
    assert points[-50:] == [(float(i), (i + 1) / 100) for i in range(9950, 10_000)]
    # 400 at even distances; places 9950 to 9999 that are among those are counted once
    assert 440 < len(points) <= 450


def test_few_points_are_all_drawn_and_nothing_is_said() -> None:
    assert curves.scatter([(2.0, 1.0), (1.0, 5.0)]) == ([(1.0, 5.0), (2.0, 1.0)], "")


def test_of_many_points_every_nth_is_drawn_and_the_slowest_always() -> None:
    points = [(float(i), 900.0 if i == 1234 else 1.0 + i / 10_000) for i in range(10_000)]
    kept, said = curves.scatter(points)
    assert (1234.0, 900.0) in kept
    assert {x for x, _ in kept} >= {float(i) for i in range(0, 10_000, 10)}
    assert len(kept) <= 1050
    assert said == "1 of 10 of 10,000 requests, and the 50 slowest"


def test_a_median_stands_for_at_least_five_neighbours() -> None:
    points = [(float(i), float(i)) for i in range(10)]
    assert curves.medians(points) == [(2.0, 2.0), (7.0, 7.0)]
    assert curves.medians(points[:4]) == []


def test_events_are_counted_per_second_of_their_bin() -> None:
    # 4 s in two parts: three events in the first, one in the second, at the end itself
    steps = curves.per_second([0.0, 0.5, 1.9, 4.0], span_s=4.0, bins=2)
    assert steps == [(0.0, 1.5), (2.0, 0.5), (4.0, 0.5)]


@pytest.mark.parametrize(("events", "bins"), [(1, 1), (25, 5), (300, 60), (10_000, 60)])
def test_bins_hold_about_five_events_and_are_at_most_sixty(events: int, bins: int) -> None:
    assert curves.bin_count(events) == bins


def test_of_many_moments_the_peaks_are_kept() -> None:
    values = [0.0] * 1000
    values[501] = 9.0
    kept, said = curves.peaks(values, lambda value: value)
    assert len(kept) == 250
    assert 9.0 in kept
    assert said == "Drawn are the busiest of every 4 moments."


def test_rows_are_grouped_only_when_they_are_many() -> None:
    assert curves.groups([1, 2]) == ([[1], [2]], "")
    parted, said = curves.groups(list(range(300)))
    assert len(parted) == 100
    assert parted[0] == [0, 1, 2]
    assert said == "Each bar is the mean of 3 requests sent one after another."


def test_numbers_are_written_to_five_digits() -> None:
    assert curves.rounded(1234.5678) == 1234.6
