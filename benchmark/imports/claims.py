"""What a person says of results that do not say it themselves."""

from pydantic import Field

from core.records import Record


class Claims(Record):
    """What a person says of a file that does not say it; it is taken as said."""

    model: str | None = None
    """A Hub id or a name of the catalog, such as 12b qat."""
    accelerator: str | None = None
    accelerator_count: int | None = Field(default=None, ge=1)
    target: str | None = None
    usd_per_hour: float | None = Field(default=None, ge=0)
    """Of all replicas together."""
    max_model_len: int | None = Field(default=None, ge=1)
    output_tokens: int | None = Field(default=None, ge=1)
    """That each request asked for; the articles' scripts ask for one."""
    timeout_seconds: float | None = Field(default=None, gt=0)
    """After which the client gave a request up."""
