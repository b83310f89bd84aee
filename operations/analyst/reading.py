"""A whole case read by one model: at once if it fits, else in portions and then together."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from core.endpoint import Endpoint, ServedModel
from core.errors import EndpointError, ModelNotServed
from operations.analyst.asking import put
from operations.analyst.form import Form, Kept, size_for
from operations.analyst.prompt import messages
from operations.analyst.ruler import UNKNOWN_CONTEXT, Ruler, ruler_of
from operations.analyst.words import Advice, Case, Claim, Row, Words

MOST_PORTIONS: Final = 6
"""Questions about rows, before the one that brings the answers together."""
MOST_ANSWER_TOKENS: Final = 1_024
_MARGIN_TOKENS: Final = 16


class Reading:
    """What a model has said so far; `words` can be asked at any time."""

    def __init__(self, label: str, case: Case) -> None:
        """Begin with nothing; `label` says whose words they are."""
        self._label = label
        self._case = case
        self._kept: list[Kept] = []
        self._final: Kept | None = None
        self._notes: dict[str, None] = {}
        self._dropped: Counter[str] = Counter()
        self._calls, self._read, self._exact, self._whole = 0, 0, False, False
        self.characters = 0
        """Heard of the answer that is being given."""

    async def run(self, endpoint: Endpoint, model: str | None) -> None:
        """Read it all.

        Raises:
            EndpointError: Nothing could be heard; what was heard before is kept.
        """
        served = await _served(endpoint, model)
        context = served.max_model_len or UNKNOWN_CONTEXT
        ruler = await ruler_of(endpoint, served.id)
        self._exact = ruler.exact
        asker = _Asker(self, self._case, ruler, context)
        portions, left_out = await asker.portions(self._case.rows)
        self._say_left_out(left_out, context, portions)
        for portion in portions[:MOST_PORTIONS]:
            kept = await asker.asked(portion)
            self._read += len(portion)
            self._kept += [kept] if kept else []
        if len(portions) > 1 and len(self._kept) > 1:
            self._final = await self._together(asker)
        self._whole = bool(self._kept) or self._final is not None

    def words(self) -> Words:
        """Give what has been said so far."""
        final = (self._final,) if self._final and self._final.claims else ()
        claims: list[Claim] = [claim for one in final or self._kept for claim in one.claims]
        advice: dict[str, Advice] = {}
        for step in (step for one in (*final, *self._kept) for step in one.advice):
            advice.setdefault(step.tool, step)
        dropped = (f"{count} of its sentences left out: {why}." for why, count in
                   sorted(self._dropped.items()))  # fmt: skip
        return Words(
            model=self._label,
            claims=tuple(claims),
            advice=tuple(advice.values()),
            complete=self._whole,
            rows_read=self._read,
            rows_given=len(self._case.rows),
            calls=self._calls,
            tokens_counted=self._exact,
            notes=(*self._notes, *dropped),
        )

    def note(self, sentence: str) -> None:
        """Say something of the reading itself."""
        self._notes[sentence] = None

    def called(self) -> None:
        """Count one more question."""
        self._calls += 1
        self.characters = 0

    def drop(self, kept: Kept) -> None:
        """Count what was not kept of an answer."""
        self._dropped.update(kept.dropped)

    def hears(self, characters: int) -> None:
        """Know how far an answer is."""
        self.characters = characters

    def _say_left_out(self, left_out: int, context: int, portions: Sequence[Sequence[Row]]) -> None:
        beyond = sum(map(len, portions[MOST_PORTIONS:]))
        if beyond:
            self.note(f"It did not read the {beyond} rows of least weight: {MOST_PORTIONS} "
                      "questions are the limit.")  # fmt: skip
        if left_out:
            self.note(f"{left_out} rows are longer than its context of {context} tokens holds.")

    async def _together(self, asker: "_Asker") -> Kept | None:
        """Let it weigh its own answers; they came of log text, so they are data as well."""
        claims = [claim for one in self._kept for claim in one.claims]
        ids = {line.partition(" ")[0] for claim in claims for line in claim.lines}
        rows = [row for row in self._case.rows if row.id in ids]
        said = [
            Row(id=" ".join(_ids(claim)), text=f"(said before of these) {claim.text}")
            for claim in claims
        ]
        try:
            return await asker.asked(rows, said=said) if said else None
        except EndpointError as exc:
            self.note(f"Its answers were not brought together: {exc.summary}")
            return None


class _Asker:
    """Puts questions to one model."""

    def __init__(self, reading: Reading, case: Case, ruler: Ruler, context: int) -> None:
        self._reading, self._ruler, self._case = reading, ruler, case
        self._answer_tokens = max(1, min(MOST_ANSWER_TOKENS, context // 4))
        self._room = context - self._answer_tokens - _MARGIN_TOKENS

    async def portions(self, rows: Sequence[Row]) -> tuple[list[Sequence[Row]], int]:
        """Give the rows in parts that each fit, and how many fit nowhere."""
        if not rows:
            return [], 0
        if await self._fits(rows, rows):
            return [rows], 0
        if len(rows) == 1:
            return [], 1
        half = len(rows) // 2
        first, left = await self.portions(rows[:half])
        more, too = await self.portions(rows[half:])
        return [*first, *more], left + too

    async def asked(self, rows: Sequence[Row], *, said: Sequence[Row] = ()) -> Kept | None:
        """Ask about these rows, or what was `said` of them; None is an answer without form."""
        if said and not await self._fits(rows, said):
            self._reading.note("Its answers were not brought together: they do not fit at once.")
            return None
        form = self._form(rows)
        self._reading.called()
        answer = await put(
            self._ruler.endpoint,
            self._ruler.model,
            messages(self._case, said or rows, form),
            form.schema,
            answer_tokens=self._answer_tokens,
            hears=self._reading.hears,
        )
        if not answer.guided:
            self._reading.note("Its endpoint takes no response_format: it was only asked for JSON.")
        if answer.cut:
            self._reading.note("An answer broke off at its limit; what was whole is kept.")
        kept = form.read(answer.text)
        if kept is None:
            self._reading.note("An answer was no JSON object.")
            return None
        self._reading.drop(kept)
        return kept

    async def _fits(self, rows: Sequence[Row], shown: Sequence[Row]) -> bool:
        asked = messages(self._case, shown, self._form(rows))
        return await self._ruler.tokens(asked) <= self._room

    def _form(self, rows: Sequence[Row]) -> Form:
        case = self._case
        return Form(rows, case.tools, case.others, size_for(self._answer_tokens))


def _ids(claim: Claim) -> list[str]:
    return [line.partition(" ")[0] for line in claim.lines]


async def _served(endpoint: Endpoint, model: str | None) -> ServedModel:
    rows = await endpoint.models()
    found = next((row for row in rows if model in {None, row.id}), None)
    if found is None:
        raise ModelNotServed(
            f"{endpoint.base_url} does not serve {model or 'any model'}.",
            fix="See what it serves, and set ANALYST_MODEL.",
        )
    return found
