"""Findings looked through."""

from collections.abc import Sequence

from benchmark.records import Finding, Limits, Manifest
from tests.benchmark.made import a_manifest

SPEC = {"name": "gemma", "model": "google/gemma-4-E4B-it"}


def of_kind(found: Sequence[Finding], kind: str) -> list[Finding]:
    return [each for each in found if each.kind == kind]


def limited(limits: Limits) -> Manifest:
    made = a_manifest()
    return made.model_copy(update={"plan": made.plan.model_copy(update={"limits": limits})})


def saying(found: Sequence[Finding], words: str) -> Finding:
    return next(each for each in found if words in each.text)
