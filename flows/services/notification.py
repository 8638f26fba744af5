"""Find or create the Prefect block that sends notifications about retraining, and define the messages that it sends. A
block is a piece of configuration that Prefect's server stores, such as the address of a webhook.

The variable TRNFLOW_NOTIFY names the block. Its value is one of:

- the address of a webhook: `trnflow deploy` keeps the address in a block of Prefect named `trnflow`, of type `slack-webhook`
  for an address of Slack, else `webhook`. Prefect encrypts the address in its database.
- `TYPE/NAME`: a webhook or notification block that exists in Prefect, such as `slack-webhook/team`.
- `off`: no notifications.

An address that is no longer used is deleted from Prefect.
Where the variable is not set, the block of the last `trnflow deploy` is kept.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.redaction import know

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import BlockDocument
    from prefect.events.actions import ActionTypes

VARIABLE = "TRNFLOW_NOTIFY"
OFF = "off"
BLOCK = "trnflow"
"""The name of the block that `trnflow deploy` creates if TRNFLOW_NOTIFY is an address."""
WEBHOOK, SLACK = "webhook", "slack-webhook"
SLACK_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
FIX = f"set {VARIABLE} to the address of a webhook, to TYPE/NAME of a block in Prefect, or to {OFF}"

RETRAIN_TEXT = """\
{% set it = event.payload %}{% set m = it.metrics %}\
{{ it.recipe }} {{ event.event.split('.') | last }}: {{ it.why }}
{% if m %}{{ m.name }} {{ '%.4g' | format(m.challenger) }}, the champion's {{ '%.4g' | format(m.champion) }}: \
difference {{ '%+.4g' | format(m.difference) }} \
[{{ '%+.4g' | format(m.interval[0]) }}, {{ '%+.4g' | format(m.interval[1]) }}], margin {{ '%.4g' | format(m.margin) }}
{% endif %}\
{% for check in it.checks if check.result == 'warned' %}warning of the check {{ check.what }}\
{% if check.column %} of {{ check.column }}{% endif %}: \
{{ '%.4g' | format(check.value) }}, limit {{ '%.4g' | format(check.limit) }}
{% endfor %}\
{% if it.error %}{{ it.error.fix }}
{% endif %}\
{% if it.report %}report: {{ it.report }}
{% endif %}\
{% set page = flow_run | ui_url %}{% if page %}{{ page }}
{% endif %}"""
"""Template of the message about a retraining that ended. Prefect fills in the event, whose payload is the JSON of
`trnflow retrain`, and the flow run that sent it."""


class Block(NamedTuple):
    """A Prefect block (a piece of configuration that Prefect's server stores) that sends notifications. id: its id in
    Prefect; kind: its type, such as `webhook`; name: its name. As text: `TYPE/NAME`."""

    id: UUID
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def take_setting() -> str | None:
    """Remove the variable TRNFLOW_NOTIFY, which says where notifications about retrains go, from this process's
    environment and return its value, or None if it is not set.

    The variable is removed because its value may hold a token, and the environment is passed on to Prefect's server.

    Raises:
        ConfigError: The value is neither an address, nor `TYPE/NAME`, nor `off`. The message does not show the value.
    """
    value = os.environ.pop(VARIABLE, "").strip()
    if not value:
        return None
    if value != OFF and not _is_address(value) and not re.fullmatch(r"[a-z0-9-]+/[\w.-]+", value):
        raise ConfigError(f"{VARIABLE} is neither an http(s) address nor TYPE/NAME of a block", FIX)
    if _is_address(value):
        know(value)
        know(urlsplit(value).path)
    return value


def find_block(client: SyncPrefectClient, value: str) -> Block | None:
    """Return the Prefect block (a stored address and its type, through which notifications are sent) that the value of
    TRNFLOW_NOTIFY names, or None for `off`. For an address, the block `trnflow` is created in Prefect, or its address
    is replaced.

    Raises:
        ConfigError: Prefect has no such block, or it can't send notifications.
    """
    if value == OFF:
        return None
    return _keep_address(client, value) if _is_address(value) else _existing_block(client, value)


def check_block(client: SyncPrefectClient, value: str | None) -> None:
    """Raise ConfigError if TRNFLOW_NOTIFY names a block (Prefect's stored address for notifications) that Prefect does
    not have, or one that can't send notifications. An address and `off` are not checked.

    value: the value of TRNFLOW_NOTIFY; None if it is not set.
    """
    if value is not None and value != OFF and not _is_address(value):
        _existing_block(client, value)


def forget_addresses(client: SyncPrefectClient, used: Block | None) -> None:
    """Delete from Prefect the blocks (stored addresses for notifications) that were created for an address in
    TRNFLOW_NOTIFY, except `used`, the block through which notifications are sent now."""
    from prefect.exceptions import ObjectNotFound

    for kind in (WEBHOOK, SLACK):
        with suppress(ObjectNotFound):
            document = client.read_block_document_by_name(BLOCK, kind, include_secrets=False)
            if used is None or document.id != used.id:
                client.delete_block_document(document.id)


def retrain_message(block: Block) -> ActionTypes:
    """Return the action with which an automation (a rule of Prefect's server) sends a message about a retraining that
    ended: how it ended, why, and the metrics of the compared models.

    block: the Prefect block (a stored address and its type) through which the message is sent."""
    rendered = "{% set text %}" + RETRAIN_TEXT + "{% endset %}"
    document = rendered + "{{ {'text': text, 'event': event.event, 'retrain': event.payload} | tojson }}"
    return _message(
        block, "trnflow: {{ event.payload.recipe }} {{ event.event.split('.') | last }}", RETRAIN_TEXT, document
    )


def plain_message(block: Block, subject: str, text: str, **further: Any) -> ActionTypes:
    """Return the action with which an automation (a rule of Prefect's server) sends a fixed text through a Prefect
    block (a stored address and its type).

    subject: the message's subject; a webhook does not get one; text: the message; further: more fields of the JSON
    document that a webhook gets, whose field `text` is the message."""
    document = json.dumps({"text": text, **further})
    return _message(block, _literal(subject), _literal(text), _literal(document))


def _message(block: Block, subject: str, text: str, document: str) -> ActionTypes:
    """Return the action that calls a webhook with a JSON document, or sends a text to another kind of block. All are
    templates."""
    from prefect.events.actions import CallWebhook, SendNotification

    if block.kind == WEBHOOK:
        return CallWebhook(block_document_id=block.id, payload=document)
    return SendNotification(block_document_id=block.id, subject=subject, body=text)


def _literal(text: str) -> str:
    """Return the template that gives this text."""
    return "{{ " + json.dumps(text) + " }}"


def _existing_block(client: SyncPrefectClient, value: str) -> Block:
    """Return the block that `TYPE/NAME` names. ConfigError if Prefect has none, or if it can't send notifications."""
    from prefect.exceptions import ObjectNotFound

    kind, _, name = value.partition("/")
    try:
        document = client.read_block_document_by_name(name, kind, include_secrets=False)
    except ObjectNotFound as error:
        raise ConfigError(
            f"{VARIABLE}: Prefect has no block {value}", f"make it on Prefect's page; or {FIX}"
        ) from error
    if kind != WEBHOOK and not _notifies(document):
        raise ConfigError(f"{VARIABLE}: the block {value} sends no notifications", FIX)
    return Block(document.id, kind, name)


def _keep_address(client: SyncPrefectClient, address: str) -> Block:
    from prefect.blocks.notifications import SlackWebhook
    from prefect.blocks.webhook import Webhook
    from pydantic import SecretStr

    is_slack = urlsplit(address).hostname in SLACK_HOSTS
    block: Any = (
        SlackWebhook(url=SecretStr(address))
        if is_slack
        else Webhook.model_validate({"url": address, "headers": {"Content-Type": "application/json"}})
    )
    return Block(block.save(BLOCK, overwrite=True, _sync=True), SLACK if is_slack else WEBHOOK, BLOCK)


def _is_address(value: str) -> bool:
    return value.startswith(("http://", "https://")) and bool(urlsplit(value).hostname) and not re.search(r"\s", value)


def _notifies(document: BlockDocument) -> bool:
    return document.block_schema is not None and "notify" in document.block_schema.capabilities
