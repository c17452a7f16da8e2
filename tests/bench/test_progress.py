from vdisagg.bench.progress import Progress, Thinned


def test_few_values_are_all_kept() -> None:
    kept = Thinned(most=8)
    for value in range(7):
        kept.add(value)
    assert kept.values == [0, 1, 2, 3, 4, 5, 6]


def test_many_values_are_thinned_evenly_and_never_pass_the_bound() -> None:
    kept = Thinned(most=8)
    for value in range(1000):
        kept.add(value)
        assert len(kept.values) < 8
    # One in s is taken until eight are there, at 7·s, and then one in 2·s: from 7·128 = 896 on, one in 256.
    assert kept.values == [0, 256, 512, 768]


def test_the_achieved_rate_is_that_between_the_first_and_the_last_sending() -> None:
    progress = Progress(10)
    assert progress.achieved_rate_per_s is None
    for at in (1.0, 1.25, 3.0):
        progress.on_sent(at, 0.0)
    assert progress.achieved_rate_per_s == 1.0
