// Clients made of the official TypeScript SDK, and what every test asks of them.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

/**
 * A connected SDK client. errors collects what the SDK reports on the side: an answer to an unknown
 * id, progress for an unknown token, a broken stream. A right server causes none.
 * version makes the client ask for an older protocol version; handlers are [schema, handler] pairs.
 */
export async function connect(url, { name = 'interop', capabilities = {}, handlers = [], notifications = [], version } = {}) {
  const client = new Client({ name, version: '1' }, { capabilities });
  const errors = [];
  client.onerror = (error) => errors.push(error);
  for (const [schema, handler] of handlers) client.setRequestHandler(schema, handler);
  for (const [schema, handler] of notifications) client.setNotificationHandler(schema, handler);
  const transport = new StreamableHTTPClientTransport(url, version ? { fetch: askForVersion(version) } : {});
  await client.connect(transport, { timeout: 180_000 });
  return {
    client,
    transport,
    errors,
    name,
    call: (tool, args = {}, options) => client.callTool({ name: tool, arguments: args }, undefined, options),
    /** Ends the session as a well-behaved client does: DELETE, then close. */
    leave: async () => {
      await transport.terminateSession();
      await client.close();
    },
    /** Goes away without a word. */
    vanish: () => client.close(),
  };
}

/** A fetch under which the SDK, which always asks for the newest version it knows, asks for another. */
function askForVersion(version) {
  return (url, init) => {
    if (init?.method === 'POST') {
      const message = JSON.parse(init.body);
      if (message.method === 'initialize') {
        message.params.protocolVersion = version;
        init = { ...init, body: JSON.stringify(message) };
      }
    }
    return fetch(url, init);
  };
}

/** The text of a tool result. */
export function text(result) {
  return result.content.map((part) => part.text ?? '').join('\n');
}
