"""What things are called on Google's side is written in one place."""

import inspect
from pathlib import Path

from backends.cloud_run import names


def test_the_name_of_an_account_is_written_once() -> None:
    """A second copy could be changed alone."""
    folder = Path(inspect.getfile(names)).parent
    sources = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.py")}
    for account in (names.RUNTIME_ID, names.BUILDER_ID):
        assert [one for one, text in sources.items() if account in text] == ["names.py"]
        assert sources["names.py"].count(account) == 1
