"""The report page in a real Chromium."""

import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from benchmark.records import Arrivals, CellResult, CellState, Code, Load
from tests.benchmark.made import a_cell, a_manifest, known, on_nodes, spread, with_verdict
from tests.benchmark.paged import (
    EVIL,
    FLAGS,
    Open,
    article,
    at_width,
    cell_of,
    chosen,
    complaints,
    doubtful,
    html_of,
    in_map,
    named_at_length,
    rows_shown,
    visit,
)

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """One Chromium for all; it takes two seconds to start."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program, "There is no chromium."
    assert driver, "There is no chromedriver."
    options = webdriver.ChromeOptions()
    options.binary_location = program
    profile = tmp_path_factory.mktemp("profile")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def opened(browser: webdriver.Chrome, tmp_path: Path) -> Open:
    """Open the page of these cells, from a file."""

    def open_page(cells: Sequence[CellResult]) -> webdriver.Chrome:
        return visit(browser, tmp_path, html_of(cells))

    return open_page


PAGES: dict[str, Callable[[], str]] = {
    "measured": lambda: html_of(doubtful()),
    "one cell": lambda: html_of([a_cell(8, 1)]),
    "imported": article,
    "long": named_at_length,
    "nodes": lambda: html_of([on_nodes(a_cell(8, load)) for load in (1, 8)]),
    "empty": lambda: html_of(()),
}


@pytest.mark.parametrize("size", [(390, 844), (1280, 800)])
@pytest.mark.parametrize("made", PAGES)
def test_a_page_fits_its_screen_and_begins_with_the_answer(
    browser: webdriver.Chrome, tmp_path: Path, made: str, size: tuple[int, int]
) -> None:
    """Only what scrolls in a frame reaches beyond it; no plot is empty, no axis is of nothing."""
    at_width(browser, *size)
    try:
        visit(browser, tmp_path, PAGES[made]())
        assert not complaints(browser)
        wide = browser.execute_script(
            """
            return [...document.querySelectorAll("body *")]
              .filter((each) => each.getBoundingClientRect().right > arguments[0] + 1)
              .filter((each) => !each.closest(".scroll"))
              .map((each) => `${each.tagName} ${each.id} ${each.className}`);
            """,
            size[0],
        )
        assert not wide
        assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
        if made in {"measured", "imported"}:
            answer = browser.find_element(By.ID, "answer")
            assert answer.rect["y"] + answer.rect["height"] <= size[1]
            names = {each.text for each in answer.find_elements(By.TAG_NAME, "dt")}
            assert {"Latency there", "How far to trust it", "Model", "Target", "Price"} <= names
            assert ("Recommended load" in names) is (made == "measured")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    plots = browser.find_elements(By.CSS_SELECTOR, "#plots figure, #detail svg, #multiples figure")
    assert bool(plots) is (made != "empty")
    for plot in plots:
        assert plot.find_elements(By.CSS_SELECTOR, ".dot")
        ticks = [each.text for each in plot.find_elements(By.CSS_SELECTOR, "text")]
        assert len(ticks) > 2
        assert not [tick for tick in ticks if tick.startswith("-") or "NaN" in tick]


def test_curves_have_intervals_and_a_point_for_each_cell(opened: Open) -> None:
    """Throughput by load, latency by load, latency by throughput; spoiled cells are hollow."""
    browser = opened(doubtful())
    figures = browser.find_elements(By.CSS_SELECTOR, "#plots figure")
    assert [each.get_attribute("id") for each in figures] == [
        "throughput-by-load", "latency-by-load", "latency-by-throughput",
    ]  # fmt: skip
    for plot in figures:
        assert len(plot.find_elements(By.CSS_SELECTOR, ".dot")) == 11
        assert len(plot.find_elements(By.CSS_SELECTOR, ".bar")) >= 11
        assert len(plot.find_elements(By.CSS_SELECTOR, ".spoiled .dot")) == 1
    Select(browser.find_element(By.ID, "latency")).select_by_visible_text("E2EL")
    words = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#plots figcaption")]
    assert words[1:] == ["E2EL against load", "E2EL against throughput"]


def test_what_is_relative_only_is_shown_and_grey(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """An article's figures are neither struck out nor recommended."""
    visit(browser, tmp_path, article())
    cell = cell_of(browser, "1024x64-once")
    assert (cell.text, cell.get_attribute("class")) == ("67", "relative-only")
    assert cell.value_of_css_property("filter") == "grayscale(1)"
    assert "Best: relative only, 67 requests/s" in browser.find_element(By.ID, "answer").text
    assert browser.find_elements(By.CSS_SELECTOR, "#throughput-by-load .relative-only .dot")


def test_what_the_client_may_have_moved_stands_below_the_figure(opened: Open) -> None:
    """To every figure its own bound."""
    cell = a_cell(8, 1)
    client = known(cell.client).model_copy(update={"error_bounds": {"ttft_p50": 0.0004}})
    browser = opened([cell.model_copy(update={"client": client})])
    rows = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#percentiles tr")]
    assert rows[2] == "± client 0.4 ms"


def test_a_cluster_has_a_curve_for_each_node_and_a_map_of_who_limits(opened: Open) -> None:
    """Curves are of one scale, so that a slower node lies higher; the busiest has a corner."""
    cells = [on_nodes(a_cell(8, load)) for load in (1, 8, 32)] + [on_nodes(a_cell(8, 128), "gone")]
    browser = opened(cells)
    assert not complaints(browser)
    plots = browser.find_elements(By.CSS_SELECTOR, "#multiples figure")
    assert [plot.text.splitlines()[0] for plot in plots] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    dots = [plot.find_elements(By.CSS_SELECTOR, ".dot") for plot in plots]
    assert [len(each) for each in dots] == [4, 4, 3]
    tops = [each[0].rect["y"] - plot.rect["y"] for each, plot in zip(dots, plots, strict=True)]
    assert tops[0] > tops[2], "the third takes longer"
    rows = browser.find_elements(By.CSS_SELECTOR, "#nodemap tbody tr")
    assert rows[0].text == "8x1 20 % 30 % 40 %, uneven"
    assert rows[3].text == "8x128 20 % 30 % lost"
    kinds = [td.get_attribute("class") for td in rows[3].find_elements(By.TAG_NAME, "td")]
    assert kinds == ["", "marked", "spoiled"]
    colours = [
        td.value_of_css_property("background-color")
        for td in rows[0].find_elements(By.TAG_NAME, "td")
    ]
    assert len(set(colours)) == 3
    assert not opened([a_cell(8, 1)]).find_elements(By.ID, "nodes")


def test_its_policy_lets_nothing_be_loaded(opened: Open) -> None:
    """An image, a script and a fetch to a listener on this machine never arrive."""
    browser = opened(doubtful())
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)  # noqa: FBT003  the socket's own signature
        blocked = browser.execute_async_script(
            """
            const [address, done] = arguments;
            const seen = [];
            addEventListener("securitypolicyviolation", (event) => {
              seen.push(event.effectiveDirective);
              if (seen.length === 3) done(seen.sort());
            });
            for (const name of ["img", "script"]) {
              const element = document.createElement(name);
              element.src = address;
              document.body.append(element);
            }
            fetch(address).catch(() => {});
            """,
            f"http://127.0.0.1:{listener.getsockname()[1]}/x",
        )
        assert blocked == ["connect-src", "img-src", "script-src-elem"]
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_the_map_shows_the_figure_of_each_cell(opened: Open) -> None:
    """With its unit and its worth for those who hear it; another figure can be chosen."""
    browser = opened(doubtful())
    assert cell_of(browser, "512x8").text == "400"
    label = cell_of(browser, "8x128").get_attribute("aria-label")
    assert label == (
        "8 prompt tokens, 128 in flight: Output throughput 1,600 tokens/s, spoiled PREFIX_CACHED"
    )
    assert "line-through" in browser.execute_script(
        "return getComputedStyle(arguments[0].firstChild).textDecoration",
        cell_of(browser, "8x128"),
    )
    assert cell_of(browser, "4096x128").text == "skipped"
    Select(browser.find_element(By.ID, "metric")).select_by_visible_text("TTFT p99 (ms)")
    assert cell_of(browser, "512x8").text == "82.1"
    assert browser.find_element(By.ID, "map-title").text.startswith("TTFT p99 (ms)")
    assert browser.find_element(By.ID, "least").text == "36.7"
    assert browser.find_element(By.ID, "better").text == "less is better"


def test_mouse_and_keyboard_reach_every_cell(opened: Open) -> None:
    """What is hovered or focused shows its percentiles and verdicts; arrows go on from there."""
    browser = opened(doubtful())
    ActionChains(browser).move_to_element(cell_of(browser, "8x128")).perform()
    assert "8 prompt tokens, 128 in flight" in chosen(browser)
    assert "PREFIX_CACHED: hit rate 43.1 %, limit 1 %" in chosen(browser)
    rows = browser.find_elements(By.CSS_SELECTOR, "#percentiles tr")
    assert [row.text for row in rows][:2] == [
        "mean p50 p90 p95 p99 max",
        "TTFT 4.82 s 4.58 s 6.27 s 7.23 s 8.68 s 9.64 s",
    ]
    assert len(browser.find_elements(By.CSS_SELECTOR, "#detail svg .line")) == 4
    browser.refresh()
    stops = browser.find_elements(By.CSS_SELECTOR, '#heatmap td[tabindex="0"]')
    assert [stop.get_attribute("data-cell") for stop in stops] == ["8x1"]
    stops[0].send_keys(Keys.ARROW_RIGHT)
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert browser.switch_to.active_element.get_attribute("data-cell") == "512x8"
    assert "512 prompt tokens, 8 in flight" in chosen(browser)
    browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert browser.switch_to.active_element.get_attribute("data-cell") == "512x1"


def test_cells_can_be_hidden_by_what_they_are_worth(opened: Open) -> None:
    """From the map and from the table; the page says how many are left."""
    browser = opened(doubtful())
    assert browser.find_element(By.ID, "shown").text == "12 of 12 cells"
    gone = {"PREFIX_CACHED": "8x128", "marked": "512x1", "unmeasured": "4096x128"}
    for number, (label, cell_id) in enumerate(gone.items(), start=1):
        browser.find_element(By.CSS_SELECTOR, f'#filter input[value="{label}"]').click()
        assert cell_id not in in_map(browser) | set(rows_shown(browser))
        assert browser.find_element(By.ID, "shown").text == f"{12 - number} of 12 cells"
    browser.find_element(By.CSS_SELECTOR, '#filter input[value="PREFIX_CACHED"]').click()
    assert "8x128" in in_map(browser) & set(rows_shown(browser))
    fast = with_verdict(a_cell(8, 32, output_token_throughput=9e6), Code.COLD)
    browser = opened([a_cell(8, 1), a_cell(8, 8), fast])
    assert browser.find_element(By.ID, "most").text == "9,000,000 tokens/s"
    browser.find_element(By.CSS_SELECTOR, '#filter input[value="COLD"]').click()
    assert browser.find_element(By.ID, "most").text == "400 tokens/s", "colours are of what is seen"


def test_the_table_sorts_by_number_both_ways(opened: Open) -> None:
    """What has no figure stands last either way."""
    browser = opened([a_cell(8, 8), a_cell(8, 32), a_cell(8, 1), a_cell(9, 1, ttft=None)])
    head = "#cells thead th:nth-child(7)"
    button = browser.find_element(By.CSS_SELECTOR, f"{head} button")
    assert button.text == "TTFT p50 (ms)"
    load = browser.find_element(By.CSS_SELECTOR, "#cells thead th:nth-child(3) button")
    load.click()
    assert rows_shown(browser) == ["8x1", "9x1", "8x8", "8x32"]
    button.click()
    assert rows_shown(browser)[-1] == "9x1"
    button.send_keys(Keys.ENTER)
    assert rows_shown(browser)[-1] == "9x1"
    order = browser.find_element(By.CSS_SELECTOR, head).get_attribute("aria-sort")
    assert order == "descending"
    load.click()
    load.click()
    assert rows_shown(browser) == ["8x32", "8x8", "8x1", "9x1"]


def test_names_that_look_like_markup_stay_text(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """A model, a reason, a verdict and a target: none of them makes an element or runs."""
    manifest = a_manifest(target=EVIL, price_source=EVIL)
    subject = manifest.subject.model_copy(update={"model": EVIL})
    cells = [
        with_verdict(a_cell(8, 1), Code.COLD, EVIL),
        a_cell(8, 8, state=CellState.SKIPPED, reason=EVIL),
        a_cell(8, 32),
    ]
    visit(browser, tmp_path, html_of(cells, manifest.model_copy(update={"subject": subject})))
    assert not complaints(browser)
    assert browser.find_elements(By.CSS_SELECTOR, "img") == []
    assert "<img src=x" in browser.find_element(By.TAG_NAME, "h1").text
    assert browser.title.startswith("Benchmark of <img")
    for cell_id in ("8x1", "8x8"):
        ActionChains(browser).move_to_element(cell_of(browser, cell_id)).perform()
    assert browser.find_elements(By.CSS_SELECTOR, "img") == []
    assert len(browser.find_elements(By.CSS_SELECTOR, "script")) == 2


def test_without_javascript_the_table_is_there(opened: Open, browser: webdriver.Chrome) -> None:
    """And the map that needs it is not."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(doubtful())
        table = browser.find_element(By.ID, "cells")
        words = browser.find_element(By.TAG_NAME, "body").text
        assert "1,600" in table.text
        assert "Output throughput (tokens/s): prompt tokens down" not in words
        assert "needs JavaScript" in words
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_arrivals_are_looked_at_one_at_a_time(opened: Open) -> None:
    """A rate's figure never stands in a column of users."""
    poisson = Load(arrivals=Arrivals.POISSON, requests_per_second=2)
    rated = a_cell(16, 1)
    rated = rated.model_copy(update={"spec": rated.spec.model_copy(update={"load": poisson})})
    browser = opened([a_cell(8, 1), rated])
    assert in_map(browser) == {"8x1"}
    Select(browser.find_element(By.ID, "arrivals")).select_by_value("poisson")
    assert in_map(browser) == {"16-poisson-2"}


@pytest.mark.parametrize(
    "cells",
    [
        (),
        (a_cell(state=CellState.FAILED),),
        (CellResult(spec=a_cell().spec, state=CellState.MEASURED),),
        (a_cell(tpot=None, itl=None, e2el=None, server=None, client=None),),
        (a_cell(ttft=spread(0.0), output_token_throughput=0.0),),
    ],
    ids=["empty", "failed", "bare", "imported", "zeros"],
)
def test_no_run_is_too_odd_for_the_page(opened: Open, cells: Sequence[CellResult]) -> None:
    """It loads without an error, and its table is there."""
    browser = opened(cells)
    assert not complaints(browser)
    assert browser.find_element(By.ID, "cells").is_displayed()
