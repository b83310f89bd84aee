"""Report pages, and what a browser shows of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from benchmark import report
from benchmark.advice import findings
from benchmark.imports import import_file
from benchmark.records import CellResult, CellState, Code, Manifest
from tests.benchmark.importing import A100, ARTICLE
from tests.benchmark.made import a_cell, a_grid, a_manifest, with_verdict

Open = Callable[[Sequence[CellResult]], webdriver.Chrome]
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1400,1600",
)
EVIL = "<img src=x onerror=document.title='gone'></script><!--\u2028"


def html_of(cells: Sequence[CellResult], manifest: Manifest | None = None) -> str:
    manifest = manifest or a_manifest()
    return report.page_text(manifest, cells, findings(manifest, cells))


def doubtful() -> list[CellResult]:
    """A grid with one cell of every kind."""
    cells = list(a_grid())
    cells[3] = with_verdict(cells[3], Code.PREFIX_CACHED, "hit rate 43.1 %, limit 1 %")
    cells[4] = with_verdict(cells[4], Code.KV_QUEUED, "KV cache 99 % full")
    cells[11] = a_cell(4096, 128, state=CellState.SKIPPED, reason="too long")
    return cells


def article() -> str:
    """The page of an article's grid: bursts, most of them relative only."""
    imported = import_file(ARTICLE, claims=A100)
    return html_of(imported.cells, imported.manifest)


def named_at_length() -> str:
    """The page of a run whose every name is as long as names get."""
    words = "a-very-long-name-without-any-place-to-break-it-" * 3
    manifest = a_manifest(target=words, accelerator=words, price_source=words)
    subject = manifest.subject.model_copy(update={"model": words})
    return html_of(a_grid(tuple(2**n for n in range(3, 15)), tuple(2**n for n in range(12))),
                   manifest.model_copy(update={"subject": subject}))  # fmt: skip


def at_width(browser: webdriver.Chrome, width: int, height: int) -> None:
    """Let the page be seen on a screen of that size, a phone's below 500."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )


def visit(browser: webdriver.Chrome, folder: Path, html: str) -> webdriver.Chrome:
    file = folder / "report.html"
    file.write_text(html, encoding="utf-8")
    complaints(browser)
    browser.get(file.as_uri())
    return browser


def complaints(browser: webdriver.Chrome) -> list[object]:
    """What the console was told since it was last asked."""
    return list(browser.get_log("browser"))  # type: ignore[no-untyped-call]  # selenium says no type


def cell_of(browser: webdriver.Chrome, cell_id: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, f'#heatmap td[data-cell="{cell_id}"]')


def in_map(browser: webdriver.Chrome) -> set[str | None]:
    found = browser.find_elements(By.CSS_SELECTOR, "#heatmap td[data-cell]")
    return {each.get_attribute("data-cell") for each in found}


def rows_shown(browser: webdriver.Chrome) -> list[str | None]:
    rows = browser.find_elements(By.CSS_SELECTOR, "#cells tbody tr")
    return [row.get_attribute("data-cell") for row in rows if row.is_displayed()]


def chosen(browser: webdriver.Chrome) -> str:
    return browser.find_element(By.ID, "detail").text
