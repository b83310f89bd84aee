"""The page works in a real browser, asks no network for anything, and shows names as text."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from benchmark import report
from tests.benchmark.paged import doubtful, html_of


@given(st.text() | st.sampled_from(["</script>", "<!--", "\u2028\u2029", "]]>", "&lt;"]))
def test_data_is_never_markup_and_comes_back_whole(text: str) -> None:
    """No letter that ends a script or begins a comment is in it."""
    words = str(report.embedded({"name": text}))
    assert not set(words) & {"<", ">", "&", "\u2028", "\u2029"}
    assert json.loads(words) == {"name": text}


def test_the_page_names_no_address_to_load_from() -> None:
    """It is the same with and without a network."""
    html = html_of(doubtful())
    loads = re.findall(r"""(?:src|href|url|@import)\s*[=(]\s*["']?([^"')\s>]+)""", html)
    assert loads == ["data:,"]


def test_every_script_element_is_ours() -> None:
    """The policy names one script and one style by hash, and the data is no script."""
    html = html_of(doubtful())
    policy = html.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert "default-src &#39;none&#39;" in policy.replace("'", "&#39;")
    assert "unsafe" not in policy
    assert html.count("<script") == 2
    assert '<td class="number figure" data-value="400.0">400</td>' in html, "without a script"


def test_no_two_rows_have_one_name() -> None:
    """Each can be told from the others, and the bookkeeping comes after the answer."""
    html = html_of(doubtful())
    names = re.findall(r"<dt>(.*?)</dt>", html.split('id="manifest-title"')[1])
    assert len(names) == len(set(names)) > 10
    places = [html.index(words) for words in ("Best: 1,600", "curves-title", "verdicts-title")]
    assert places == sorted(places)
