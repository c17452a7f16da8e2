from vdisagg.bench.refusals import advice


def test_a_server_that_names_our_fields_needs_strict() -> None:
    for detail in ("Unrecognized request argument supplied: cache_salt", "extra: ignore_eos"):
        assert advice("HTTP 400", detail, strict=False).startswith("say --strict, ")
    assert "--strict" not in advice("HTTP 400", "ignore_eos", strict=True)


def test_other_refusals_may_have_other_reasons() -> None:
    said = advice("HTTP 422", "the prompt is too long", strict=False)
    assert said.startswith("see that model, prompt and answer are what the server takes; where it ")
    assert "--strict" in said


def test_what_is_no_refusal_is_not_about_fields() -> None:
    assert "`vdisagg status`" in advice("HTTP 404", "no such model: ignore_eos", strict=False)
    assert "`vdisagg status`" in advice(None, "", strict=False)
