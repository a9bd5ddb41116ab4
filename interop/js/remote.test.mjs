// Servers that are reached over HTTP: the official everything server in its two modes, and small servers of the
// official TypeScript SDK. Properties M6, R1, R2, R5, U1; cases 4, 33, 67, 69.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { connect as connectSocket } from 'node:net';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { CreateMessageRequestSchema, ElicitRequestSchema, ResourceUpdatedNotificationSchema, ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

import { connect, text } from './clients.mjs';
import { Child, freePort, patience, serverScript, startDaemon, until } from './launch.mjs';
import { RawClient } from './raw.mjs';
import { useEverything, useSubscriptions } from './scenario.mjs';

/** Starts the everything server in a mode, on a port of its own or on a given one. */
async function everything(t, mode, port) {
  port ??= await freePort();
  const child = new Child(process.execPath, [serverScript('everything'), mode], { env: { ...process.env, PORT: String(port) } });
  t.after(() => child.killAll());
  await until('the server listens', patience, () =>
    new Promise((done) => {
      const socket = connectSocket(port, '127.0.0.1', () => (socket.destroy(), done(true)));
      socket.on('error', () => done(false));
    }),
  );
  return {
    url: `http://127.0.0.1:${port}/${mode === 'sse' ? 'sse' : 'mcp'}`,
    port,
    /** How many sessions were begun here. */
    sessions: () => child.output.split('Session initialized with ID').length - 1,
    stop: async () => {
      child.killAll();
      await child.ended;
    },
  };
}

/** A daemon with one remote server, called everything. */
const daemonWith = (t, entry) => startDaemon(t, { servers: () => ({ everything: entry }) });

const numbers = [0, 1, 2, 3, 4];

for (const [mode, entry] of [
  ['streamableHttp', (url) => ({ type: 'http', url })],
  ['sse', (url) => ({ type: 'sse', url })],
]) {
  // M1, M2, M4: ids, progress, cancellations and subscriptions of five clients never meet on one connection.
  test(`five clients share one connection to a server over ${mode}`, { timeout: 300_000 }, async (t) => {
    const server = await everything(t, mode);
    const daemon = await daemonWith(t, { ...entry(server.url), sharing: 'shared' });
    const updates = numbers.map(() => []);
    const sessions = await Promise.all(
      numbers.map((i) =>
        connect(daemon.mcp('everything'), { name: `client-${i}`, notifications: [[ResourceUpdatedNotificationSchema, ({ params }) => updates[i].push(params.uri)]] }),
      ),
    );
    await Promise.all(sessions.map(useEverything));
    await useSubscriptions(sessions, updates);
    const connections = await daemon.connections();
    assert.deepEqual(connections.map(({ server, refs, generation }) => [server, refs, generation]), [['everything', 5, 1]]);
    assert.deepEqual(sessions.flatMap(({ errors }) => errors.map(String)), []);
    await Promise.all(sessions.map((session) => session.leave()));
  });
}

// U1: what a remote server knows of its client may be that client's alone.
test('by default every client has a session of its own at a remote server', { timeout: 300_000 }, async (t) => {
  const server = await everything(t, 'streamableHttp');
  const daemon = await daemonWith(t, { url: server.url });
  const [a, b] = await Promise.all([connect(daemon.mcp('everything')), connect(daemon.mcp('everything'))]);
  for (const one of [a, b]) assert.equal(text(await one.call('get-sum', { a: 1, b: 2 })), 'The sum of 1 and 2 is 3.');
  assert.deepEqual((await daemon.connections()).map(({ refs }) => refs), [1, 1]);
  assert.equal(server.sessions(), 2);
  await a.leave();
  await until('its connection is closed', patience, async () => (await daemon.connections()).length === 1);
  assert.equal(text(await b.call('echo', { message: 'still here' })), 'Echo: still here');
  await b.leave();
});

/** A client that answers sampling and elicitation with its name, but only once everybody was asked. */
async function interactive(daemon, name, everybody) {
  const asked = { sampling: 0, elicitation: 0 };
  const session = await connect(daemon.mcp('everything'), {
    name,
    capabilities: { sampling: {}, elicitation: {} },
    handlers: [
      [
        CreateMessageRequestSchema,
        async ({ params }) => {
          asked.sampling++;
          await everybody('sampling');
          return { model: `model-of-${name}`, role: 'assistant', content: { type: 'text', text: `${name} heard: ${params.messages[0].content.text}` } };
        },
      ],
      [
        ElicitRequestSchema,
        async () => {
          asked.elicitation++;
          await everybody('elicitation');
          return { action: 'accept', content: { name } };
        },
      ],
    ],
  });
  return { ...session, asked };
}

// M6: over Streamable HTTP the stream says whose call a request belongs to, so both are asked at the same time.
test('sampling and elicitation work for two clients in flight on one connection', { timeout: 300_000 }, async (t) => {
  const server = await everything(t, 'streamableHttp');
  const daemon = await daemonWith(t, { type: 'http', url: server.url, sharing: 'shared' });
  const waiting = { sampling: 0, elicitation: 0 };
  const everybody = (what) => {
    waiting[what]++;
    return until(`both were asked for ${what}`, patience, () => waiting[what] === 2);
  };
  const [alice, bob] = await Promise.all(['alice', 'bob'].map((name) => interactive(daemon, name, everybody)));
  const both = [alice, bob];
  for (const [i, result] of (await Promise.all(both.map(({ name, call }) => call('trigger-sampling-request', { prompt: `prompt of ${name}` })))).entries()) {
    assert.match(text(result), new RegExp(`${both[i].name} heard: .*prompt of ${both[i].name}`));
  }
  for (const [i, result] of (await Promise.all(both.map(({ call }) => call('trigger-elicitation-request')))).entries()) {
    assert.match(text(result), new RegExp(`- Name: ${both[i].name}\\b`));
  }
  for (const one of both) {
    assert.deepEqual(one.asked, { sampling: 1, elicitation: 1 });
    assert.deepEqual(one.errors.map(String), []);
  }
  const [connection, ...others] = await daemon.connections();
  assert.deepEqual([connection.refs, connection.serial ?? false, others.length, server.sessions()], [2, false, 0, 1]);
  await Promise.all(both.map((one) => one.leave()));
});

// Case 4, R5: the server forgets our session; the next calls of all sharers begin one new one, and nobody notices.
test('a remote server that was started anew costs its clients nothing', { timeout: 300_000 }, async (t) => {
  let server = await everything(t, 'streamableHttp');
  const daemon = await daemonWith(t, { type: 'http', url: server.url, sharing: 'shared' });
  const updates = [];
  const sessions = await Promise.all(
    numbers.map((i) => connect(daemon.mcp('everything'), { notifications: i === 0 ? [[ResourceUpdatedNotificationSchema, ({ params }) => updates.push(params.uri)]] : [] })),
  );
  const uri = 'demo://resource/dynamic/text/1';
  await sessions[0].client.subscribeResource({ uri });
  for (const round of [1, 2]) {
    await server.stop();
    server = await everything(t, 'streamableHttp', server.port);
    const answers = await Promise.all(sessions.map(({ call }, i) => call('get-sum', { a: round, b: i })));
    answers.forEach((answer, i) => assert.equal(text(answer), `The sum of ${round} and ${i} is ${round + i}.`));
    assert.equal(server.sessions(), 1, 'one new session for all');
  }
  // M4: the new session was told of the subscription.
  await sessions[1].call('toggle-subscriber-updates');
  await until('the subscriber has an update', patience, () => updates.includes(uri));
  assert.deepEqual(sessions.flatMap(({ errors }) => errors.map(String)), []);
  await Promise.all(sessions.map((session) => session.leave()));
});

// R1, R2: while it is down calls fail with an error that names it; when it is back they work. Calls wait for the
// recovery, which is short here; the failures are about as many as open the circuit, which is not what this is about.
test('a remote server that is down is named, and found again', { timeout: 300_000 }, async (t) => {
  const port = await freePort();
  const daemon = await startDaemon(t, {
    servers: () => ({ everything: { type: 'http', url: `http://127.0.0.1:${port}/mcp`, sharing: 'shared' } }),
    settings: { pool: { drainDelay: '2s', recovery: { remote: { attempts: 3, delay: '200ms', maxDelay: '500ms' } }, circuit: { failures: 100 } } },
  });
  await assert.rejects(connect(daemon.mcp('everything')), /server "everything" cannot be reached.*connection refused/);

  let server = await everything(t, 'streamableHttp', port);
  const session = await connect(daemon.mcp('everything'));
  assert.equal(text(await session.call('echo', { message: 'one' })), 'Echo: one');
  const slow = session.call('trigger-long-running-operation', { duration: 300, steps: 300 }).catch((error) => error); // longer than the client waits
  await daemon.calls('everything', 1);
  await sleep(500);
  await server.stop();
  const interrupted = await slow;
  assert.deepEqual([interrupted.data.reason, interrupted.data.sent, interrupted.data.server], ['interrupted', 'maybe', 'everything']);
  for (let i = 0; i < 3; i++) {
    const error = await session.call('echo', { message: 'two' }).catch((error) => error);
    assert.match(String(error.message), /server "everything"/);
    assert.match(error.data.reason, /^(interrupted|start_failed)$/);
  }
  server = await everything(t, 'streamableHttp', port);
  assert.equal(text(await session.call('echo', { message: 'three' })), 'Echo: three');
  await session.leave();
});

/** A small server of the official SDK: every session gets what make() returns. look sees every request first and may answer it. */
async function small(t, make, look = () => false) {
  const transports = new Map();
  const http = createServer(async (request, response) => {
    if (look(request, response)) return;
    let transport = transports.get(request.headers['mcp-session-id']);
    if (!transport) {
      transport = new StreamableHTTPServerTransport({ sessionIdGenerator: () => randomUUID(), onsessioninitialized: (id) => transports.set(id, transport) });
      await make().connect(transport);
    }
    await transport.handleRequest(request, response);
  });
  await new Promise((done) => http.listen(0, '127.0.0.1', done));
  t.after(() => (http.closeAllConnections(), http.close()));
  return `http://127.0.0.1:${http.address().port}/mcp`;
}

// M4, V1: a change of the list reaches all who share the connection, who then see the new one.
test('a remote server that gets another tool tells all its clients', { timeout: 300_000 }, async (t) => {
  const made = [];
  const url = await small(t, () => {
    const server = new McpServer({ name: 'small', version: '1' });
    server.registerTool('first', {}, () => ({ content: [] }));
    made.push(server);
    return server;
  });
  const daemon = await startDaemon(t, { servers: () => ({ small: { type: 'http', url, sharing: 'shared' } }) });
  const told = [0, 0, 0];
  const sessions = await Promise.all(told.map((_, i) => connect(daemon.mcp('small'), { notifications: [[ToolListChangedNotificationSchema, () => told[i]++]] })));
  const names = async ({ client }) => (await client.listTools()).tools.map(({ name }) => name);
  for (const session of sessions) assert.deepEqual(await names(session), ['first']);
  assert.equal(made.length, 1);
  await until('the server has our stream, and all clients were told', patience, async () => {
    made[0].registerTool(`more-${randomUUID()}`, {}, () => ({ content: [] }));
    await sleep(400);
    return told.every((n) => n > 0);
  });
  for (const session of sessions) assert.ok((await names(session)).length > 1);
  await Promise.all(sessions.map((session) => session.leave()));
});

// Cases 67, 69: needs_login, whatever the server quotes; what clients send to us is not passed on, and what is configured is shown to nobody.
test('a remote server that wants a login says so, and no secret is shown', { timeout: 300_000 }, async (t) => {
  const secret = `s3cret-${randomUUID()}`;
  const seen = [];
  let locked = true;
  const url = await small(
    t,
    () => {
      const server = new McpServer({ name: 'small', version: '1' });
      server.registerTool('first', {}, () => ({ content: [{ type: 'text', text: 'in' }] }));
      return server;
    },
    (request, response) => {
      seen.push(request.headers);
      if (!locked) return false;
      response.writeHead(401, { 'www-authenticate': `Bearer resource_metadata="http://127.0.0.1/${secret}"` });
      response.end(`no entry with ${request.headers.authorization} at ${request.url}`);
      return true;
    },
  );
  const daemon = await startDaemon(t, {
    servers: () => ({ small: { type: 'http', url: `${url}?key=${secret}`, headers: { Authorization: `Bearer ${secret}`, 'X-Team': 'blue' }, sharing: 'shared' } }),
  });
  const raw = new RawClient(daemon.mcp('small'), '2025-11-25');
  const ours = { cookie: 'for=roundhouse', 'x-forwarded-for': '192.0.2.1', 'proxy-authorization': 'Basic eA==' };
  const hello = { jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } } };
  const { messages } = await raw.post(hello, ours);
  const shown = [JSON.stringify(messages)];
  assert.equal(messages[0].error.data.reason, 'needs_login');
  assert.equal(messages[0].error.data.server, 'small');
  assert.match(messages[0].error.message, /server "small".*401.*needs a login/s);
  for (const path of ['/api/v1/status', '/api/v1/servers', '/api/v1/servers/small', '/api/v1/connections', '/api/v1/sessions', '/api/v1/servers/small/logs']) {
    shown.push(await (await fetch(new URL(path, daemon.url))).text());
  }

  locked = false;
  const session = await connect(daemon.mcp('small'));
  assert.equal(text(await session.call('first')), 'in');
  locked = true;
  const error = await session.call('first').catch((error) => error);
  assert.deepEqual([error.data.reason, error.data.sent], ['needs_login', 'no']);
  shown.push(JSON.stringify(error), String(error.stack));
  locked = false;
  assert.equal(text(await session.call('first')), 'in', 'the login is asked for once, not for ever');
  await session.leave();

  shown.push(daemon.output);
  for (const one of shown) assert.ok(!one.includes(secret), `a secret is shown: ${one}`);
  assert.ok(seen.length > 0);
  for (const headers of seen) {
    assert.equal(headers.authorization, `Bearer ${secret}`);
    assert.equal(headers['x-team'], 'blue');
    for (const name of Object.keys(ours)) assert.equal(headers[name], undefined, `${name} was passed on`);
  }
});
