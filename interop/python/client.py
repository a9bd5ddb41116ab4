"""Holds sessions of the official Python SDK's client, and does with them what it is told, one JSON object
a line on standard input; on standard output comes one for each when it is done. ../js/peers.mjs says what
can be asked."""

import json
import sys
from contextlib import AsyncExitStack

import anyio
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated


class Session:
    """One client and what it has heard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.updated: list[str] = []
        self.changes = 0
        self.errors: list[str] = []
        self.calls: dict[str, anyio.CancelScope] = {}
        self.progress: dict[str, list[dict]] = {}
        self.client: Client
        self.closing = anyio.Event()
        self.closed = anyio.Event()

    async def sample(self, _context, params) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text=f"{self.name} heard {params.messages[0].content.text}")
        return types.CreateMessageResult(role="assistant", model=self.name, content=content)

    async def elicit(self, _context, _params) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": self.name})

    async def roots(self, _context) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=f"file:///{self.name}", name=self.name)])

    async def hear(self, message) -> None:
        """Takes what comes outside of listens: everything in the older era."""
        if isinstance(message, Exception):
            self.errors.append(repr(message))
        elif self.modern:
            pass  # the listens have it
        elif isinstance(message, types.ResourceUpdatedNotification):
            self.updated.append(str(message.params.uri))
        elif isinstance(message, types.ToolListChangedNotification):
            self.changes += 1

    @property
    def modern(self) -> bool:
        return self.client.protocol_version >= "2026-07-28"

    async def live(self, order: dict, *, task_status) -> None:
        """The session from its beginning to its end; a client has to be left in the task that entered it."""
        if "url" in order:
            target = order["url"]
        else:
            target = StdioServerParameters(command=order["command"][0], args=order["command"][1:])
        async with AsyncExitStack() as stack:
            self.client = Client(
                target, mode="auto" if order["era"] == "modern" else "legacy", client_info=types.Implementation(name=self.name, version="1"),
                sampling_callback=self.sample, elicitation_callback=self.elicit, list_roots_callback=self.roots, message_handler=self.hear,
            )  # fmt: skip
            try:
                await stack.enter_async_context(self.client)
            except BaseException as error:
                task_status.started(error)
                return
            self.tasks = await stack.enter_async_context(anyio.create_task_group())
            if self.modern:
                await self.tasks.start(self.listen, dict(tools_list_changed=True))
            task_status.started(None)
            await self.closing.wait()
            self.tasks.cancel_scope.cancel()
        self.closed.set()

    async def listen(self, filters, *, task_status) -> None:
        async with self.client.listen(**filters) as subscription:
            task_status.started()
            async for event in subscription:
                if isinstance(event, ResourceUpdated):
                    self.updated.append(event.uri)
                else:
                    self.changes += 1

    async def obey(self, order: dict):
        match order["op"]:
            case "call":
                return await self.call(order)
            case "progress":
                return self.progress.get(order["key"], [])
            case "cancel":
                self.calls[order["key"]].cancel()
            case "subscribe" if self.modern:
                await self.tasks.start(self.listen, dict(resource_subscriptions=[order["uri"]]))
            case "subscribe":
                await self.client.session.subscribe_resource(order["uri"])
            case "tools":
                return [tool.name for tool in (await self.client.list_tools(cache_mode="bypass")).tools]
            case "heard":
                return {"updated": self.updated, "changes": self.changes, "errors": self.errors}
            case "close":
                self.closing.set()
                await self.closed.wait()
        return True

    async def call(self, order: dict) -> dict:
        progress = self.progress[order["key"]] = []

        async def on_progress(value, total, message) -> None:
            progress.append({"progress": value, "total": total, "message": message})

        with anyio.CancelScope() as scope:
            self.calls[order["key"]] = scope
            result = await self.client.call_tool(order["tool"], order["arguments"], progress_callback=on_progress)
            text = "".join(part.text for part in result.content if part.type == "text")
            return {"text": text, "isError": result.is_error}
        raise RuntimeError("cancelled")


async def main() -> None:
    sessions: dict[str, Session] = {}

    def reply(number: int, **members) -> None:
        print(json.dumps({"id": number, **members}), flush=True)

    async with anyio.create_task_group() as tasks:

        async def obey(order: dict) -> None:
            try:
                if order["op"] == "open":
                    session = sessions[order["session"]] = Session(order["session"])
                    if failed := await tasks.start(session.live, order):
                        raise failed
                    result = session.client.protocol_version
                else:
                    result = await sessions[order["session"]].obey(order)
                reply(order["id"], result=result)
            except MCPError as error:
                reply(order["id"], error={"code": error.error.code, "message": error.error.message})
            except Exception as error:
                reply(order["id"], error={"message": repr(error)})

        input = anyio.wrap_file(sys.stdin)
        async for line in input:
            tasks.start_soon(obey, json.loads(line))
        tasks.cancel_scope.cancel()


anyio.run(main)
