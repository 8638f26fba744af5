"""The chat template that writes what `format.chat_template: sections` does, for the model's folder."""

from __future__ import annotations

import json
from string import Template

ROLES = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool", "developer": "System"}
"""{role: its heading}."""

_TEMPLATE = Template("""\
{{- $begin }}
{%- set names = $roles %}
{%- for message in messages %}
    {%- if not loop.first %}
        {{- '\\n\\n' }}
    {%- endif %}
    {{- '### ' + names[message['role']] + '\\n' + (message['content'] or '') }}
    {%- if message['role'] == 'assistant' %}
        {{- $end }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '\\n\\n### ' + names['assistant'] + '\\n' }}
{%- endif -%}
""")


def sections_template(begin: str, end: str) -> str:
    """Return the template. begin: what the tokenizer puts before a text; end: its eos token, "" for none."""
    written = {"begin": begin, "roles": ROLES, "end": end}
    return _TEMPLATE.substitute({name: json.dumps(value, ensure_ascii=False) for name, value in written.items()})
