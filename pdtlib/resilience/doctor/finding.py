"""What a check of the doctor has found."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``verdict`` is ok, hint or bad; ``fix`` says what to do where it is not ok."""

    check: str
    verdict: str
    message: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert (self.verdict == "ok") == (not self.fix), self
