"""What a chat template left out of a text."""

from __future__ import annotations

from trnflow.tasks.data.format.written import lacks_tools


def test_a_text_with_some_of_the_tools_lacks_tools() -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}, {"name": "news"}]
    assert lacks_tools(tools, "You may call weather.") and lacks_tools(tools, "You may call news.")
    assert not lacks_tools(tools, "You may call weather and news.") and not lacks_tools(None, "You may call nothing.")
