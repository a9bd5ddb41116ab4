// The official TypeScript client starts `roundhouse connect everything`, as hosts do, on a machine
// where nothing runs.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { copyFileSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { Client as SecondClient } from '@modelcontextprotocol/client';
import { StdioClientTransport as SecondStdio } from '@modelcontextprotocol/client/stdio';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { CreateMessageRequestSchema, ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

import { text } from './clients.mjs';
import { patience, processes, serverScript, until } from './launch.mjs';

const binary = resolve(process.env.ROUNDHOUSE_BIN ?? join(dirname(fileURLToPath(import.meta.url)), '..', '..', 'bin', 'roundhouse'));

/** A machine with a configuration and nothing running. What came of it is killed when the test ends. */
function coldMachine(t) {
  const directory = realpathSync(mkdtempSync(join(tmpdir(), 'rh-')));
  const mark = `ROUNDHOUSE_INTEROP=${randomUUID()}`;
  const executable = join(directory, 'roundhouse');
  copyFileSync(binary, executable);
  const [name, value] = mark.split('=');
  const everything = { command: process.execPath, args: [serverScript('everything')], env: { [name]: value } };
  const config = join(directory, 'mcp.json');
  writeFileSync(config, JSON.stringify({ mcpServers: { everything } }));
  const all = () => processes(({ environment, executable: file }) => environment.includes(mark) || file.replace(/ \(deleted\)$/, '') === executable);
  t.after(async () => {
    for (const { pid, command } of all()) if (command.includes('serve')) process.kill(pid, 'SIGTERM');
    await until('everything has ended', patience, () => all().length === 0).finally(() => {
      for (const { pid } of all()) process.kill(pid, 'SIGKILL');
      rmSync(directory, { recursive: true, force: true });
    });
  });
  /** How a host starts a shim. */
  const command = (args = ['connect', 'everything']) => ({
    command: executable,
    args,
    // The SDK passes on a few variables only; these are what the host's configuration would add.
    env: { HOME: directory, ROUNDHOUSE_CONFIG: config, ROUNDHOUSE_STATE_DIR: join(directory, 'state'), ROUNDHOUSE_SOCKET: join(directory, 'socket') },
    stderr: 'pipe',
  });
  return {
    command,
    daemons: () => all().filter(({ command }) => command.includes('serve')),
    servers: () => processes(({ environment, command }) => environment.includes(mark) && command.some((word) => word.includes('server-everything'))),
    async connect({ args, capabilities = {}, handlers = [], notifications = [] } = {}) {
      const client = new Client({ name: 'interop', version: '1' }, { capabilities });
      const errors = [];
      client.onerror = (error) => errors.push(error);
      for (const [schema, handler] of handlers) client.setRequestHandler(schema, handler);
      for (const [schema, handler] of notifications) client.setNotificationHandler(schema, handler);
      const transport = new StdioClientTransport(command(args));
      await client.connect(transport, { timeout: 60_000 });
      return { client, errors, echo: async (message) => text(await client.callTool({ name: 'echo', arguments: { message } })) };
    },
  };
}

// H8, case 72: one daemon by one winner, one server, no lost call.
test('twenty clients at once on a cold machine share one daemon and one server', { timeout: 300_000 }, async (t) => {
  const machine = coldMachine(t);
  const clients = await Promise.all(Array.from({ length: 20 }, () => machine.connect()));
  await Promise.all(
    clients.map(async ({ echo }, i) => {
      for (let k = 0; k < 10; k++) assert.match(await echo(`${i}/${k}`), new RegExp(`${i}/${k}$`));
    }),
  );
  assert.equal(machine.daemons().length, 1, 'one daemon');
  assert.equal(machine.servers().length, 1, 'one server');
  for (const { client, errors } of clients) {
    await client.close();
    assert.deepEqual(errors, []);
  }
});

// H8, case 5: calls work after the daemon was killed; the client hears that lists may have changed.
test('a client outlives its daemon', { timeout: 300_000 }, async (t) => {
  const machine = coldMachine(t);
  let changes = 0;
  const { client, errors, echo } = await machine.connect({ notifications: [[ToolListChangedNotificationSchema, () => changes++]] });
  await echo('before');
  let begun = false;
  const slow = client.callTool({ name: 'trigger-long-running-operation', arguments: { duration: 300, steps: 3_000 } }, undefined, { onprogress: () => (begun = true) });
  slow.catch(() => {});
  await until('the call has begun', patience, () => begun);
  for (const { pid } of machine.daemons()) process.kill(pid, 'SIGKILL');
  await assert.rejects(slow, (error) => error.code === -32010 && error.data.reason === 'interrupted' && error.data.sent === 'maybe');
  assert.match(await echo('after'), /after$/);
  await until('the client has heard of changed lists', patience, () => changes > 0);
  await client.close();
  assert.deepEqual(errors, []);
});

// M6: a server's request reaches the client through the shim, and its answer the server.
test('sampling through a shim', { timeout: 300_000 }, async (t) => {
  const machine = coldMachine(t);
  const answer = { model: 'm', role: 'assistant', content: { type: 'text', text: 'sampled words' } };
  const { client, errors } = await machine.connect({ capabilities: { sampling: {} }, handlers: [[CreateMessageRequestSchema, () => answer]] });
  const result = await client.callTool({ name: 'trigger-sampling-request', arguments: { prompt: 'p', maxTokens: 10 } });
  assert.match(text(result), /sampled words/);
  await client.close();
  assert.deepEqual(errors, []);
});

// M8, M9, H8: the second SDK tries out 2026-07-28 on a process that it throws away, and then speaks it; what it listens
// to outlives a daemon that was killed.
test('a client of the new era outlives its daemon', { timeout: 300_000 }, async (t) => {
  const machine = coldMachine(t);
  const client = new SecondClient({ name: 'interop', version: '1' }, { versionNegotiation: { mode: 'auto' } });
  const errors = [];
  client.onerror = (error) => errors.push(error);
  let changes = 0;
  const updated = [];
  client.setNotificationHandler('notifications/tools/list_changed', () => changes++);
  client.setNotificationHandler('notifications/resources/updated', ({ params }) => void updated.push(params.uri));
  await client.connect(new SecondStdio(machine.command()), { timeout: 60_000 });
  assert.equal(client.getProtocolEra(), 'modern');
  assert.equal(client.getServerVersion().name, 'mcp-servers/everything');
  const call = async (name, args) => text(await client.callTool({ name, arguments: args }));
  const uri = 'demo://resource/dynamic/text/1';
  const listening = await client.listen({ toolsListChanged: true, resourceSubscriptions: [uri] });
  await call('toggle-subscriber-updates', {});
  await until('the client has heard of its resource', patience, () => updated.includes(uri));
  updated.length = 0;
  for (const { pid } of machine.daemons()) process.kill(pid, 'SIGKILL');
  await until('calls work again', patience, () => call('echo', { message: 'after' }).then((got) => /after$/.test(got), () => false));
  await until('the client has heard of what may have changed', patience, () => changes > 0 && updated.includes(uri));
  updated.length = 0;
  await call('toggle-subscriber-updates', {});
  await until('the new server tells of the resource', patience, () => updated.includes(uri));
  await listening.close();
  await client.close();
  assert.deepEqual(errors, []);
});
