"""What every record of this project is."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A closed, immutable record; the sentence under a field is its description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        defer_build=True,  # what no call needs is not built at start-up
    )
