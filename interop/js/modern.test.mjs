// Clients of 2026-07-28, which shake no hands, on a server of the older era: the second TypeScript SDK, and bare
// requests. Properties M1, M2, M3, M8, M9, H1.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

import { connect as connectOlder, text } from './clients.mjs';
import { patience, startDaemon, until } from './launch.mjs';
import { RawClient, events } from './raw.mjs';
import { useEverything } from './scenario.mjs';

const version = '2026-07-28';

/** A connected client of the second SDK. mode is how it finds the version; options go to the Client. */
async function connect(url, { name = 'interop', mode = 'auto', ...options } = {}) {
  const client = new Client({ name, version: '1' }, { versionNegotiation: { mode }, ...options });
  const errors = [];
  client.onerror = (error) => errors.push(error);
  await client.connect(new StreamableHTTPClientTransport(url), { timeout: 180_000 });
  return {
    client,
    errors,
    name,
    call: (tool, args = {}, options) => client.callTool({ name: tool, arguments: args }, options),
    leave: () => client.close(),
  };
}

test('clients of both eras share one server', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const url = daemon.mcp('everything');
  const modes = ['auto', { pin: version }, 'legacy', 'auto'];
  const sessions = await Promise.all(modes.map((mode, i) => connect(url, { mode, name: `second ${i}` })));
  sessions.push(await connectOlder(url, { name: 'first' }));
  assert.deepEqual(sessions.slice(0, 4).map(({ client }) => client.getProtocolEra()), ['modern', 'modern', 'legacy', 'modern']);
  for (const { client } of sessions.slice(0, 4)) {
    assert.equal(client.getServerVersion().name, 'mcp-servers/everything');
    assert.ok(client.getInstructions().length > 0);
    assert.ok((await client.listTools()).tools.some(({ name }) => name === 'echo'));
  }
  await Promise.all(sessions.map(useEverything));
  assert.equal(daemon.servers().length, 1);
  for (const session of sessions) {
    assert.deepEqual(session.errors.map(String), [], session.name);
    await session.leave();
  }
});

test('a client of the new era listens, and hears of its own resources only', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const heard = [[], []];
  const sessions = [];
  for (const i of [0, 1]) {
    const session = await connect(daemon.mcp('everything'), { mode: { pin: version } });
    session.client.setNotificationHandler('notifications/resources/updated', ({ params }) => void heard[i].push(params.uri));
    session.subscription = await session.client.listen({ resourceSubscriptions: [`demo://resource/dynamic/text/${i + 1}`, 'demo://resource/dynamic/text/9'] });
    sessions.push(session);
  }
  await sessions[0].call('toggle-subscriber-updates');
  await until('both have heard', patience, () => heard.every((uris) => uris.length >= 2));
  await sessions[1].call('toggle-subscriber-updates');
  for (const i of [0, 1]) {
    assert.deepEqual([...new Set(heard[i])].sort(), [`demo://resource/dynamic/text/${i + 1}`, 'demo://resource/dynamic/text/9']);
    await sessions[i].subscription.close();
    await sessions[i].leave();
    assert.deepEqual(sessions[i].errors.map(String), []);
  }
});

/** A bare request of the new era: its body and its headers. */
function bare(id, method, params = {}, meta = {}) {
  const body = {
    jsonrpc: '2.0',
    id,
    method,
    params: {
      ...params,
      _meta: { 'io.modelcontextprotocol/protocolVersion': version, 'io.modelcontextprotocol/clientCapabilities': {}, ...meta },
    },
  };
  const headers = { 'mcp-protocol-version': version, 'mcp-method': method };
  if (params.name ?? params.uri) headers['mcp-name'] = params.name ?? params.uri;
  return [body, headers];
}

test('bare requests: equal ids, headers that lie, a disconnect', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const client = new RawClient(daemon.mcp('everything'), version);
  const answers = await Promise.all([0, 1, 2, 3].map((i) => client.post(...bare(1, 'tools/call', { name: 'echo', arguments: { message: `m${i}` } }))));
  answers.forEach(({ status, headers, messages }, i) => {
    assert.equal(status, 200);
    assert.equal(headers.get('mcp-session-id'), null);
    assert.equal(messages[0].id, 1);
    assert.equal(messages[0].result.resultType, 'complete');
    assert.equal(messages[0].result.content[0].text, `Echo: m${i}`);
  });

  const [body, headers] = bare('x', 'tools/call', { name: 'echo', arguments: { message: 'no' } });
  const lie = await client.post(body, { ...headers, 'mcp-name': 'get-env' });
  assert.deepEqual([lie.status, lie.messages[0].id, lie.messages[0].error.code], [400, 'x', -32020]);
  for (const method of ['initialize', 'ping', 'resources/subscribe', 'no/such']) {
    const gone = await client.post(...bare(2, method));
    assert.deepEqual([gone.status, gone.messages[0].error.code], [404, -32601], method);
  }

  // Whoever hangs up has cancelled: no progress is made for nobody, and the next call finds the server free.
  const response = await client.open(
    ...bare(3, 'tools/call', { name: 'trigger-long-running-operation', arguments: { duration: 300, steps: 3_000 } }, { progressToken: 'p' }),
  );
  for await (const { id, data } of events(response.body)) {
    assert.equal(id, undefined, 'events have no ids');
    if (data) break; // closes the connection
  }
  await until('nothing is in flight', patience, async () => (await (await fetch(new URL('/api/v1/status', daemon.url))).json()).inFlight === 0);
});
