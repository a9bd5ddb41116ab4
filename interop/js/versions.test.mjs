// Clients of every protocol version that uses initialize, by SDK and by bare requests. Properties W1, M8, H2, H3.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { connect, text } from './clients.mjs';
import { startDaemon } from './launch.mjs';
import { RawClient, events } from './raw.mjs';
import { useEverything } from './scenario.mjs';

const versions = ['2024-11-05', '2025-03-26', '2025-06-18', '2025-11-25'];
const call = (id, name, args, meta) => ({ jsonrpc: '2.0', id, method: 'tools/call', params: { name, arguments: args, ...(meta && { _meta: meta }) } });

test('SDK clients of every protocol version share one server', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const sessions = await Promise.all(versions.map((version) => connect(daemon.mcp('everything'), { name: version, version })));
  sessions.forEach(({ transport }, i) => assert.equal(transport.protocolVersion, versions[i], 'the server takes the version that was asked for'));
  await Promise.all(sessions.map(useEverything));
  assert.equal(daemon.servers().length, 1);
  for (const session of sessions) {
    assert.deepEqual(session.errors.map(String), [], session.name);
    await session.leave();
  }
});

for (const version of versions) {
  test(`bare requests of ${version}: handshake, ids of every spelling, progress, GET, DELETE`, { timeout: 300_000 }, async (t) => {
    const daemon = await startDaemon(t);
    const client = new RawClient(daemon.mcp('everything'), version);
    const result = await client.initialize();
    assert.equal(result.protocolVersion, version);
    assert.equal(result.serverInfo.name, 'mcp-servers/everything');
    assert.ok(result.instructions.length > 0);
    assert.ok(result.capabilities.tools && result.capabilities.prompts && result.capabilities.resources.subscribe);

    // Ids are told apart by spelling and come back as they were written.
    const spelled = ['1', '"1"', '0', '-7', '"a b"', '""', '9007199254740993'];
    await Promise.all(
      spelled.map(async (id, i) => {
        const response = await client.open(`{"jsonrpc":"2.0","id":${id},"method":"tools/call","params":{"name":"echo","arguments":{"message":"m${i}"}}}`);
        assert.equal(response.status, 200);
        const body = await response.text();
        assert.ok(body.includes(`"id":${id}`), `id ${id} in ${body}`);
        assert.ok(body.includes(`Echo: m${i}`), body);
      }),
    );

    // Progress makes the answer a stream, in order, under the client's own token, result last.
    for (const token of ['"t"', '0', '7']) {
      const response = await client.open(
        `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"trigger-long-running-operation","arguments":{"duration":0.3,"steps":3},"_meta":{"progressToken":${token}}}}`,
      );
      assert.match(response.headers.get('content-type'), /^text\/event-stream/);
      const seen = [];
      for await (const { data } of events(response.body)) if (data) seen.push(JSON.parse(data));
      assert.deepEqual(seen.map(({ method, params }) => [method, params?.progress, params?.progressToken]), [
        ['notifications/progress', 1, JSON.parse(token)],
        ['notifications/progress', 2, JSON.parse(token)],
        ['notifications/progress', 3, JSON.parse(token)],
        [undefined, undefined, undefined],
      ]);
      assert.equal(seen[3].id, 5);
    }

    // The session's own stream.
    const stream = await client.get();
    assert.equal(stream.status, 200);
    assert.match(stream.headers.get('content-type'), /^text\/event-stream/);
    await client.post({ jsonrpc: '2.0', id: 'sub', method: 'resources/subscribe', params: { uri: 'demo://resource/dynamic/text/3' } });
    const update = (async () => {
      for await (const { data } of events(stream.body)) {
        const message = data && JSON.parse(data);
        if (message?.method === 'notifications/resources/updated') return message.params.uri;
      }
    })();
    await client.post(call(1, 'toggle-subscriber-updates', {}));
    assert.equal(await update, 'demo://resource/dynamic/text/3');
    await client.post(call(1, 'toggle-subscriber-updates', {}));

    // Unknown methods and tools are answered, not swallowed.
    const unknown = await client.post({ jsonrpc: '2.0', id: 8, method: 'no/such' });
    assert.equal(unknown.messages[0].error.code, -32601);
    assert.deepEqual((await client.post({ jsonrpc: '2.0', id: 9, method: 'ping' })).messages, [{ jsonrpc: '2.0', id: 9, result: {} }]);

    const ended = await client.delete();
    assert.ok([200, 202, 204].includes(ended.status), `DELETE answered ${ended.status}`);
    assert.equal((await client.post(call(2, 'echo', { message: 'x' }))).status, 404);
    assert.equal((await client.get()).status, 404);
  });
}

// W3: batches belong to 2025-03-26 alone.
test('a batch of 2025-03-26 is answered whole; 2025-06-18 refuses it', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const old = new RawClient(daemon.mcp('everything'), '2025-03-26');
  await old.initialize();
  const batch = [
    call(1, 'echo', { message: 'one' }),
    { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 'nothing of the kind' } },
    call('1', 'trigger-long-running-operation', { duration: 0.2, steps: 2 }, { progressToken: 'p' }),
    { jsonrpc: '2.0', id: 3, method: 'no/such' },
    { jsonrpc: '2.0', id: 4, method: 'ping' },
  ];
  const { status, messages } = await old.post(batch);
  assert.equal(status, 200);
  const answers = messages.filter((message) => 'id' in message);
  assert.equal(answers.length, 4, JSON.stringify(messages));
  const of = (id) => answers.find((answer) => answer.id === id);
  assert.equal(of(1).result.content[0].text, 'Echo: one');
  assert.match(of('1').result.content[0].text, /Steps: 2/);
  assert.equal(of(3).error.code, -32601);
  assert.deepEqual(of(4).result, {});
  assert.equal(messages.filter(({ method }) => method === 'notifications/progress').length, 2);
  const quiet = await old.post([{ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 77 } }]);
  assert.equal(quiet.status, 202, 'a batch without requests is accepted');

  const modern = new RawClient(daemon.mcp('everything'), '2025-06-18');
  await modern.initialize();
  assert.equal((await modern.post(batch)).status, 400);
});

// H2: a broken stream is taken up again where it broke, and the call runs once.
for (const version of ['2025-03-26', '2025-06-18', '2025-11-25']) {
  test(`a call whose stream breaks is resumed with Last-Event-ID in ${version}`, { timeout: 300_000 }, async (t) => {
    const daemon = await startDaemon(t);
    const client = new RawClient(daemon.mcp('everything'), version);
    await client.initialize();
    const response = await client.open(call(1, 'trigger-long-running-operation', { duration: 1.5, steps: 5 }, { progressToken: 'p' }));
    const seen = [];
    let last;
    for await (const { id, data } of events(response.body)) {
      if (id) last = id;
      if (data) seen.push(JSON.parse(data));
      if (seen.length === 2) break; // Leaving the loop closes the connection.
    }
    assert.ok(last, 'events carry ids');
    const rest = await client.get({ 'last-event-id': last });
    assert.equal(rest.status, 200);
    for await (const { data } of events(rest.body)) {
      if (data) seen.push(JSON.parse(data));
      if (seen.at(-1)?.id === 1) break;
    }
    assert.deepEqual(seen.map((message) => message.params?.progress ?? message.id), [1, 2, 3, 4, 5, 1]);
    assert.match(seen.at(-1).result.content[0].text, /Steps: 5/);
    await client.delete();
  });
}

// M2: no answer follows a cancelled call, and its stream ends.
test('a cancelled call has no answer and its request ends', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const client = new RawClient(daemon.mcp('everything'), '2025-11-25');
  const other = new RawClient(daemon.mcp('everything'), '2025-11-25');
  await Promise.all([client.initialize(), other.initialize()]);
  for (const id of [0, 1, '']) {
    const slow = client.post(call(id, 'trigger-long-running-operation', { duration: 300, steps: 1 })); // longer than the client waits
    const same = other.post(call(id, 'trigger-long-running-operation', { duration: 3, steps: 1 }));
    const both = Promise.allSettled([slow, same]); // so that neither is left behind if the test fails before it awaits them
    await daemon.calls('everything', 2);
    await sleep(200);
    const accepted = await client.post({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: id, reason: 'enough' } });
    assert.equal(accepted.status, 202);
    const { messages } = await slow;
    assert.deepEqual(messages.filter((message) => 'id' in message), []);
    assert.match((await same).messages.at(-1).result.content[0].text, /Steps: 1/, 'the same id of another client is not cancelled');
    await both;
  }
});

// H3, W2
test('requests that are wrong are refused with the status that says how', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const client = new RawClient(daemon.mcp('everything'), '2025-11-25');
  await client.initialize();
  const ping = { jsonrpc: '2.0', id: 1, method: 'ping' };
  const status = async (message, headers, at = client) => (await at.post(message, headers)).status;
  assert.equal(await status(ping), 200);
  assert.equal(await status(ping, { 'mcp-session-id': 'unknown' }), 404, 'unknown session');
  assert.equal(await status(ping, {}, new RawClient(daemon.mcp('everything'), '2025-11-25')), 400, 'no session');
  assert.equal(await status(ping, { accept: 'text/html' }), 406, 'not acceptable');
  assert.equal(await status(ping, { 'content-type': 'text/plain' }), 415, 'not JSON by its own word');
  assert.equal(await status('{"jsonrpc":"2.0","id":1,"method":'), 400, 'cut off');
  assert.equal(await status(ping, { 'mcp-protocol-version': '1999-01-01' }), 400, 'a version nobody speaks');
  assert.equal(await status(ping, { origin: 'https://elsewhere.example' }), 403, 'a foreign origin');
  assert.equal(await status(ping, {}, new RawClient(daemon.mcp('nonsense'), '2025-11-25')), 404, 'unknown server');
  assert.equal((await client.get({ accept: 'application/json' })).status, 406, 'GET wants a stream');
  const doubled = await client.post('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"get-env","arguments":{}}}');
  assert.ok(doubled.messages[0].error, 'two names in one call');
  assert.equal(await status(ping), 200, 'the session lives on');
});

// H1: who comes with the older HTTP with SSE gets told where to go.
test('a client of the old HTTP with SSE is told where to go', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const response = await fetch(daemon.mcp('everything'), { headers: { accept: 'text/event-stream' } });
  assert.ok([400, 405].includes(response.status), `GET without a session answered ${response.status}`);
  await response.text();
  // What such a client tries next still works: the SDK's own check that the fallback is not needed.
  const session = await connect(daemon.mcp('everything'));
  assert.equal(text(await session.call('echo', { message: 'here' })), 'Echo: here');
  await session.leave();
});
