"""The Prefect block that notifies of retrains, and its messages.

TRNFLOW_NOTIFY names the block: the address of a webhook, which Prefect keeps encrypted in a block named `trnflow`;
`TYPE/NAME` of an existing block, such as `slack-webhook/team`; or `off`.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from trnflow.flows.services.events import FIRST
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.redaction import add_secret

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.actions import ActionTypes

VARIABLE = "TRNFLOW_NOTIFY"
OFF = "off"
WEBHOOK, SLACK = "webhook", "slack-webhook"
SLACK_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
FIX = f"set {VARIABLE} to the address of a webhook, to TYPE/NAME of a block in Prefect, or to {OFF}"


class Block(NamedTuple):
    """A Prefect block that notifies; as text `TYPE/NAME`."""

    id: UUID
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def take_setting() -> str | None:
    """Remove TRNFLOW_NOTIFY from the environment, and return its value or None. Raises ConfigError without the value."""
    value = os.environ.pop(VARIABLE, "").strip()
    if not value:
        return None
    if value != OFF and not _is_address(value) and not re.fullmatch(r"[a-z0-9-]+/[\w.-]+", value):
        raise ConfigError(f"{VARIABLE} is neither an http(s) address nor TYPE/NAME of a block", FIX)
    if _is_address(value):
        add_secret(value)
        add_secret(urlsplit(value).path)
    return value


def find_block(client: SyncPrefectClient, value: str, project: str) -> Block | None:
    """Return the block of a value of TRNFLOW_NOTIFY, None for `off`; an address gets a block. Raises ConfigError."""
    if value == OFF:
        return None
    return _keep_address(client, value, project) if _is_address(value) else _existing_block(client, value)


def _block_name(project: str) -> str:
    """Return the name of the block that `trnflow deploy` creates for an address."""
    return "trnflow" if project == FIRST else f"trnflow-{re.sub('[^a-z0-9-]', '-', project.lower())}"


def check_block(client: SyncPrefectClient, value: str | None) -> None:
    """Raise ConfigError if Prefect does not have the block of TRNFLOW_NOTIFY, or it can't notify."""
    if value is not None and value != OFF and not _is_address(value):
        _existing_block(client, value)


def forget_addresses(client: SyncPrefectClient, used: Block | None, project: str) -> None:
    """Delete the blocks that were created for an address of a project, except `used`."""
    from prefect.exceptions import ObjectNotFound

    for kind in (WEBHOOK, SLACK):
        with suppress(ObjectNotFound):
            document = client.read_block_document_by_name(_block_name(project), kind, include_secrets=False)
            if used is None or document.id != used.id:
                client.delete_block_document(document.id)


def retrain_message(block: Block) -> ActionTypes:
    """Return an automation's action: a message how a retrain ended, why, and the compared metrics.

    The event's payload is the JSON of `trnflow retrain`.
    """
    subject = "trnflow: {{ event.payload.recipe }} {{ event.event.split('.') | last }}"
    text = Path(__file__).with_name("retrain_message.jinja").read_text(encoding="utf-8")
    rendered = "{% set text %}" + text + "{% endset %}"
    document = rendered + "{{ {'text': text, 'event': event.event, 'retrain': event.payload} | tojson }}"
    return _message(block, subject, text, document)


def plain_message(block: Block, subject: str, text: str, **further: Any) -> ActionTypes:
    """Return an automation's action that sends a fixed text. further: more fields of a webhook's JSON."""
    document = json.dumps({"text": text, **further})
    return _message(block, _literal(subject), _literal(text), _literal(document))


def _message(block: Block, subject: str, text: str, document: str) -> ActionTypes:
    """Return the action that calls a webhook with a JSON document, or sends a text to another kind of block."""
    from prefect.events.actions import CallWebhook, SendNotification

    if block.kind == WEBHOOK:
        return CallWebhook(block_document_id=block.id, payload=document)
    return SendNotification(block_document_id=block.id, subject=subject, body=text)


def _literal(text: str) -> str:
    """Return the template that gives this text."""
    return "{{ " + json.dumps(text) + " }}"


def _existing_block(client: SyncPrefectClient, value: str) -> Block:
    """Return the block `TYPE/NAME`. Raises ConfigError if Prefect has none, or the block can't notify."""
    from prefect.exceptions import ObjectNotFound

    kind, _, name = value.partition("/")
    try:
        document = client.read_block_document_by_name(name, kind, include_secrets=False)
    except ObjectNotFound as error:
        raise ConfigError(
            f"{VARIABLE}: Prefect has no block {value}", f"make it on Prefect's page; or {FIX}"
        ) from error
    schema = document.block_schema
    if kind != WEBHOOK and (schema is None or "notify" not in schema.capabilities):
        raise ConfigError(f"{VARIABLE}: the block {value} sends no notifications", FIX)
    return Block(document.id, kind, name)


def _keep_address(client: SyncPrefectClient, address: str, project: str) -> Block:
    from prefect.blocks.notifications import SlackWebhook
    from prefect.blocks.webhook import Webhook
    from pydantic import SecretStr

    is_slack = urlsplit(address).hostname in SLACK_HOSTS
    block: Any = (
        SlackWebhook(url=SecretStr(address))
        if is_slack
        else Webhook.model_validate({"url": address, "headers": {"Content-Type": "application/json"}})
    )
    name = _block_name(project)
    return Block(block.save(name, overwrite=True, _sync=True), SLACK if is_slack else WEBHOOK, name)


def _is_address(value: str) -> bool:
    return value.startswith(("http://", "https://")) and bool(urlsplit(value).hostname) and not re.search(r"\s", value)
