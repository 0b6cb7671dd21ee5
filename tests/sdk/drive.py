"""Drives an Agents API with the official SDK, unchanged: creates an agent and a session, waits, checks the answer.

    python drive.py BASE_URL API_KEY INPUT [--expect TEXT]... [--answer] [--check]

INPUT is the script of the sandbox's model. Someone else (actiond) answers its calls; with --answer this program does, through
the SDK. --check also reads every resource by the SDK and validates it strictly against the SDK's own types. Exit status: 0 done.
"""

import argparse
import json
import sys
import threading
import time

from openai import BadRequestError, ConflictError, NotFoundError, OpenAI
from openai.types.beta import Agent, AgentDeleted, AgentSession, AgentSessionDeleted
from openai.types.beta.agent_session_event import AgentSessionEvent
from openai.types.beta.agent_session_item import AgentSessionItem
from openai.types.beta.agents.sessions import Turn
from openai.types.webhooks import (
    DeletedWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointWithSecret,
    WebhookEventTypeList,
)
from pydantic import TypeAdapter

TOOLS = [
    {
        "type": "function",
        "name": "lookup_order",
        "description": "Look up an order by its ID.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
    }
]


def strict(kind, value):
    """The SDK builds its types without looking; this looks."""
    TypeAdapter(kind).validate_json(value.model_dump_json(by_alias=True))
    return value


def answer_calls(client, session):
    """What actiond does: every pending function call is answered, here by its own arguments."""
    for action in session.required_actions:
        if action.type != "function_call":
            continue
        result = {
            "type": "agent.session.input.tool_result",
            "turn_id": action.turn_id,
            "call_id": action.call_id,
            "success": True,
            "output": json.dumps({"echo": action.arguments}),
        }
        key = f"result-{action.turn_id}-{action.call_id}"
        try:
            client.beta.agents.sessions.events.create(session.id, events=[result], idempotency_key=key)
        except BadRequestError as error:
            # Too early, or too late: the next read tells.
            if "Unknown pending tool call" not in error.message:
                raise


def wait_until_done(client, session, answer, timeout):
    sessions = client.beta.agents.sessions
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        session = strict(AgentSession, sessions.retrieve(session.id))
        if session.status in ("idle", "failed"):
            return session
        if answer and session.status == "requires_action":
            answer_calls(client, session)
        else:
            time.sleep(0.1)
    sys.exit(f"session {session.id} is still {session.status} after {timeout} s")


def check_lists(client, session):
    sessions = client.beta.agents.sessions
    items = [strict(AgentSessionItem, item) for item in sessions.items.list(session.id, order="asc", limit=2)]
    turns = [strict(Turn, turn) for turn in sessions.turns.list(session.id)]
    assert {turn.status for turn in turns} == {"completed"}, turns
    assert sessions.turns.retrieve(turns[0].id, session_id=session.id) == turns[0]
    assert len(list(sessions.turns.items.list(turns[0].id, session_id=session.id, limit=100))) == len(items)
    assert session.id in [strict(AgentSession, one).id for one in sessions.list(agent_id=session.agent.id)]
    assert session.id in [one.id for one in sessions.list(metadata={"made_by": "drive"})]
    assert session.id not in [one.id for one in sessions.list(metadata={"made_by": "nobody"})]
    updated = strict(AgentSession, sessions.update(session.id, metadata={"made_by": "drive", "seen": "yes"}))
    assert updated.metadata["seen"] == "yes"


def check_stream(client, agent):
    """The SDK's own dispatcher answers the calls of a stream that it follows."""
    sessions = client.beta.agents.sessions
    seen = []
    with sessions.create(agent_id=agent.id, environment={"type": "none"}, stream=True, input="hello") as stream:
        for event in stream:
            seen.append(strict(AgentSessionEvent, event).type)
            if event.type == "agent.session.idle":
                session = event.session
                break
    assert seen[0] == "agent.session.created" and "agent.session.turn.completed" in seen, seen

    handlers = {"lookup_order": lambda arguments: {"order": arguments["order_id"]}}
    script = 'lookup_order {"order_id":"7"} & call lookup_order "{\\"order_id\\":\\"8\\"}" then lookup_order {"order_id":"9"}'
    with sessions.stream(session.id, input=script, tool_handlers=handlers) as stream:
        for event in stream.with_result_collection():
            seen.append(strict(AgentSessionEvent, event).type)
        result = stream.get_final_result()
    assert all(f'{{"order":"{number}"}}' in result.output_text for number in (7, 8, 9)), result.output_text
    assert "agent.session.requires_action" in seen, seen
    return session


def check_webhook_endpoints(client):
    """What the SDK asks of endpoints; it sends no beta header there."""
    webhooks = client.webhooks
    event = "agent.session.action_required"
    assert event in strict(WebhookEventTypeList, webhooks.event_types.list()).data
    made = strict(WebhookEndpointWithSecret, webhooks.create(name="drive", url="https://a.example/hook", event_types=[event]))
    assert made.signing_secret.startswith("whsec_")
    for _ in range(3):
        webhooks.create(name="more", url="https://a.example/more", event_types=[event])
    listed = [strict(WebhookEndpoint, one) for one in webhooks.list(limit=2)]
    assert [one.id for one in listed].count(made.id) == 1 and len(listed) == 4, listed
    assert webhooks.update(made.id, name="renamed").name == "renamed"
    assert strict(WebhookEndpoint, webhooks.retrieve(made.id)).name == "renamed"
    rotated = strict(WebhookEndpointWithSecret, webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True))
    assert rotated.signing_secret != made.signing_secret
    assert strict(DeletedWebhookEndpoint, webhooks.delete(made.id)).deleted
    expect(NotFoundError, lambda: webhooks.retrieve(made.id))


def check_cancel_and_delete(client, session):
    sessions = client.beta.agents.sessions
    content = [{"type": "input_text", "text": "nobody {} & await approval"}]
    message = {"type": "agent.session.input.message", "input": [{"role": "user", "content": content}]}
    sessions.events.create(session.id, events=[message])
    deadline = time.monotonic() + 10
    while (waiting := strict(AgentSession, sessions.retrieve(session.id))).status != "requires_action":
        assert time.monotonic() < deadline, waiting
        time.sleep(0.05)
    assert [action.type for action in waiting.required_actions] == ["function_call", "mcp_approval_request"], waiting
    expect(ConflictError, lambda: sessions.delete(session.id))
    sessions.events.create(session.id, events=[{"type": "agent.session.input.cancel"}])
    assert sessions.retrieve(session.id).status == "idle"
    ids = {"turn_id": "turn_0", "call_id": "call_0"}
    late = {"type": "agent.session.input.tool_result", **ids, "success": True, "output": ""}
    error = expect(BadRequestError, lambda: sessions.events.create(session.id, events=[late]))
    assert error.code == "invalid_request_error" and error.body["message"] == "Unknown pending tool call: call_0", error
    followed = []
    with sessions.events.stream(session.id) as stream:
        thread = threading.Thread(target=lambda: followed.extend(stream))
        thread.start()
        strict(AgentSessionDeleted, sessions.delete(session.id))
        thread.join(10)
        assert not thread.is_alive(), "the stream of a deleted session goes on"
    expect(NotFoundError, lambda: sessions.retrieve(session.id))


def expect(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url")
    parser.add_argument("api_key")
    parser.add_argument("input")
    parser.add_argument("--expect", action="append", default=[], help="must be in the final message; may be repeated")
    parser.add_argument("--answer", action="store_true", help="answer the calls here")
    parser.add_argument("--check", action="store_true", help="read every resource and validate it")
    parser.add_argument("--timeout", type=float, default=60, help="seconds")
    args = parser.parse_args()

    client = OpenAI(api_key=args.api_key, base_url=args.base_url, max_retries=0)
    agents = client.beta.agents
    agent = strict(Agent, agents.create(model="scripted", name="drive", tools=TOOLS))
    session = agents.sessions.create(
        agent_id=agent.id, environment={"type": "none"}, input=args.input, metadata={"made_by": "drive"}
    )
    session = wait_until_done(client, strict(AgentSession, session), args.answer, args.timeout)
    messages = [
        item.output_text
        for item in agents.sessions.items.list(session.id, order="asc", limit=100)
        if item.type == "message" and item.role == "assistant"
    ]
    print(messages[-1] if messages else f"no message: {session.error}")
    missing = [text for text in args.expect if not messages or text not in messages[-1]]
    if missing or session.status != "idle":
        sys.exit(f"session {session.id} is {session.status}; missing in its answer: {missing}")
    if args.check:
        check_lists(client, session)
        assert strict(Agent, agents.retrieve(agent.id)).id == agent.id
        assert strict(Agent, agents.update(agent.id, name="driven")).name == "driven"
        assert "driven" in [strict(Agent, one).name for one in agents.list()]
        check_webhook_endpoints(client)
        check_cancel_and_delete(client, check_stream(client, agent))
        strict(AgentDeleted, agents.delete(agent.id))


if __name__ == "__main__":
    main()
