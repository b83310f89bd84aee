"""What things are called on Google's side is written in one place."""

import inspect
from pathlib import Path

from backends.cloud_run import site as cloud_run
from backends.google import clients as google


def test_the_name_of_an_account_is_written_once() -> None:
    """A second copy could be changed alone."""
    folder = Path(inspect.getfile(google)).parent.parent
    sources = {file: file.read_text(encoding="utf-8") for file in folder.rglob("*.py")}
    for account, names in ((google.RUNTIME_ID, google), (cloud_run.BUILDER_ID, cloud_run)):
        there = Path(inspect.getfile(names))
        assert [one for one, text in sources.items() if account in text] == [there]
        assert sources[there].count(account) == 1
