"""The default throughput table: its document, and properties that any such table must have."""

import pytest

from tests.traces.roofline_doc import DOC, SECTION, updated
from traces.roofline import USABLE_MEMORY, WIDTHS, default_throughputs, footprint_gb, step_s
from traces.roofline_figures import MODELS, WORKER_TYPES

TABLE = default_throughputs()
FOOTPRINT = {model.name: footprint_gb(model) for model in MODELS}


def test_the_document_shows_the_table_that_the_code_computes():
    """The tables of docs/throughputs.md are up to date; `python -m tests.traces.roofline_doc` writes them."""
    text = DOC.read_text(encoding="utf-8")
    assert [match[2] for match in SECTION.finditer(text)] == ["types", "models", "rates", "scaling"]
    assert updated(text) == text


def test_every_model_has_a_rate_on_every_type_and_width():
    """Seven types have prices and memory, and at least a dozen models have a rate for every width on each."""
    assert set(TABLE.worker_types) == {"t4", "l4", "v100", "a100", "h100", "h200", "cpu"}
    assert set(TABLE.prices_per_gpu_hour) == set(TABLE.memory_gb) == set(TABLE.worker_types)
    assert len(TABLE.job_types) == len(MODELS) >= 12
    assert len(TABLE.solo) == len(MODELS) * len(WORKER_TYPES) * len(WIDTHS)


def test_a_model_that_does_not_fit_has_rate_zero_at_any_width():
    """A rate is 0 exactly if the model does not fit into memory."""
    for (job_type, _, kind), rate in TABLE.solo.items():
        assert (rate > 0) == (FOOTPRINT[job_type] <= USABLE_MEMORY * TABLE.memory_gb[kind])
    assert TABLE.rate("gpt2-1.5b", 8, "v100") == 0
    assert TABLE.rate("gpt2-1.5b", 1, "a100") > 0


def test_more_gpus_gain_something_and_at_most_their_number():
    """More GPUs of a node are never slower, except of CPU servers; spreading a gang never makes it faster."""
    for (job_type, gpus, kind), rate in TABLE.solo.items():
        single_rate = TABLE.rate(job_type, 1, kind)
        assert rate <= gpus * single_rate
        assert rate >= single_rate or kind == "cpu"
        assert TABLE.rate(job_type, gpus, kind, consolidated=False) <= rate


def test_newer_gpus_are_not_slower():
    """For every model V100, A100, H100 and H200 are in order of speed."""
    for model in TABLE.job_types:
        rates = [TABLE.rate(model, 1, kind) for kind in ("v100", "a100", "h100", "h200")]
        assert rates == sorted(rates)


def test_types_suit_models_differently():
    """The gain of an H100 over a V100 differs widely between models, which makes mixed clusters worth scheduling."""
    gains = [
        TABLE.rate(model, 1, "h100") / TABLE.rate(model, 1, "v100")
        for model in TABLE.job_types
        if TABLE.rate(model, 1, "v100") > 0
    ]
    assert min(gains) == pytest.approx(1.0)
    assert max(gains) > 5


def test_pairs_fit_together_and_are_slower_than_alone():
    """In a pair both jobs are slower than alone, their footprints fit, and equal jobs share equally."""
    assert TABLE.pairs
    for (kind, a, gpus_a, b, gpus_b), rates in TABLE.pairs.items():
        assert gpus_a == gpus_b == 1
        alone = (TABLE.rate(a, 1, kind), TABLE.rate(b, 1, kind))
        if FOOTPRINT[a] + FOOTPRINT[b] > USABLE_MEMORY * TABLE.memory_gb[kind]:
            assert rates == (0, 0)
        else:
            assert all(0 < rate < full for rate, full in zip(rates, alone, strict=True))
            assert a != b or rates[0] == rates[1]


def test_jobs_with_different_bottlenecks_share_well():
    """An agent that mostly waits for its games hardly slows a language model; two language models gain nothing."""

    def worth(a, b):
        together = TABLE.pairs["a100", a, 1, b, 1]
        return together[0] / TABLE.rate(a, 1, "a100") + together[1] / TABLE.rate(b, 1, "a100")

    assert worth("ppo-games", "gpt2-124m") > 1.5
    assert worth("bert-large", "gpt2-124m") < 1.01


def test_well_known_rates_are_met_within_a_factor_of_two():
    """Rates are near widely published round figures: samples per second, mixed precision, one GPU."""
    for name, kind, samples_per_s in (
        ("resnet50", "v100", 1_350),
        ("resnet50", "a100", 2_800),
        ("resnet50", "t4", 400),
        ("bert-large", "a100", 100),
        ("gpt2-124m", "a100", 150),
    ):
        model = next(model for model in MODELS if model.name == name)
        kind = next(known for known in WORKER_TYPES if known.name == kind)
        assert 0.5 < model.batch / step_s(model, kind) / samples_per_s < 2
