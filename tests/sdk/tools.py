"""Validates the tools on standard input, a JSON array, against the official SDK's own types. Exit status: 0 accepted.

    actiond tools --platform openai --json | python tools.py
"""

import sys

from openai.types.beta.agent_tool_param import AgentToolParam
from openai.types.beta.persisted_agent_tool_param import PersistedAgentToolParam
from pydantic import TypeAdapter


def main():
    text = sys.stdin.buffer.read()
    for kind in (PersistedAgentToolParam, AgentToolParam):
        tools = TypeAdapter(list[kind]).validate_json(text, strict=True, extra="forbid")
    print(" ".join(tool.get("name", tool["type"]) for tool in tools))


if __name__ == "__main__":
    main()
