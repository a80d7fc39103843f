"""What chapter 8 says of published runs: which pass the article's line, and that none passes the bound."""

from pdtlib.book import claims
from pdtlib.book.claims.published import ON_A100, UTILISATIONS
from pdtlib.plan.efficiency import best_share
from pdtlib.plan.units import percent_text


def test_no_quoted_run_is_faster_than_the_best_matrix_product() -> None:
    for gpu, preset in (("A100", "A100-SXM4-80"), ("H100", "H100-SXM5")):
        best = best_share(preset)
        assert best
        assert all(run.mfu < best for run in UTILISATIONS if run.gpu == gpu)
        assert all(run.mfu_with_attention < best for run in ON_A100 if run.gpu.name == preset)


def test_the_claim_on_excellent_mfu_names_every_run_above_it() -> None:
    """MegaScale by the printed time of a step: 59.8 % on 3,072 GPUs and 66.3 % on 256."""
    (claim,) = (claim for claim in claims.register() if claim.id == "C8-b")
    reason = claims.judged(claim)[1].reason
    above = {run.name: run.mfu_with_attention for run in ON_A100 if run.mfu_with_attention > 0.5}
    above |= {run.run: run.mfu for run in UTILISATIONS if run.mfu > 0.5}
    assert max(above.values()) == above["MegaScale, GPT 175B on 256 GPUs"]
    for mfu in above.values():
        assert percent_text(mfu) in reason
    assert "3,072 GPUs 59.8" in reason
    assert "256 GPUs 66.3" in reason
