"""The page of `trnflow health`: one file that loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Iterable

TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem; font: 16px/1.5 system-ui, sans-serif; color: #1d2733; }
.problem { border-left: 4px solid #c77700; background: #fff7e8; padding: .5rem .8rem; }
th { text-align: left; vertical-align: top; padding-right: 1rem; white-space: pre; }
td, p { overflow-wrap: anywhere; }
</style></head><body>
<h1>{{ title }}</h1><p>As of {{ created }}; `trnflow health` and `trnflow ui` write this page anew.</p>
{% for problem in problems %}<p class="problem">{{ problem }}</p>{% endfor %}
<table>{% for name, state in rows %}<tr><th>{{ name }}</th><td>{{ state }}</td></tr>{% endfor %}</table>
</body></html>
"""


def health_page(title: str, created: str, problems: list[str], rows: Iterable[tuple[str, str]]) -> str:
    """Return the page as HTML. rows: (part, its state)."""
    from jinja2 import Environment, StrictUndefined

    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(TEMPLATE)
    return template.render(title=title, created=created, problems=problems, rows=rows)
