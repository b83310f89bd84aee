"""The one error that ends a boot."""

from typing import Literal

Process = Literal["APIServer", "EngineCore"]


class BootError(Exception):
    """The engine cannot start; the text is the last line of vLLM's traceback."""

    def __init__(
        self, text: str, *, process: Process = "APIServer", code: int = 1, traceback: bool = True
    ) -> None:
        super().__init__(text)
        self.process: Process = process
        self.code = code
        self.traceback = traceback
