// Coding agents, as people run them, find and call a tool of the official everything server through roundhouse. Only their models are scripted.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { patience, processes, startDaemon, until } from '../js/launch.mjs';
import { agents, run } from './agents.mjs';
import { startModel } from './model.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const binary = resolve(process.env.ROUNDHOUSE_BIN ?? join(here, '..', '..', 'bin', 'roundhouse'));

/** Lets count callers of its function go on once all of them have called it. */
function barrier(count) {
  let open;
  const opened = new Promise((done) => (open = done));
  return async () => {
    if (--count === 0) open();
    await opened;
  };
}

/** The clients that the daemon has, each with its session's connections. */
async function clients(daemon) {
  const response = await fetch(new URL('/api/v1/sessions', daemon.url));
  assert.equal(response.status, 200);
  return (await response.json()).sessions.flatMap(({ id, clients, connections }) => clients.map((client) => ({ ...client, session: id, connections })));
}

/**
 * Has the agent echo a word by way of server, and asserts that its model was offered the tool and got the word back, and that the agent ended well
 * and went nowhere else. tool is the name of the echo tool on that server; before the model closes, during is awaited.
 */
async function echo(t, agent, { server, tool = 'echo', word, during = () => {} }) {
  const model = await startModel(t, {
    tool: `mcp__${server.name}__${tool}`,
    args: { message: word },
    closing: async (result) => {
      await during();
      return `The server said ${result}.`;
    },
  });
  const { code, signal, output, took } = await run(t, agent, { model: model.url, server, prompt: `Have the server echo ${word}.` });
  const context = `${agent.name}: ${output}\n${JSON.stringify(model.turns)}`;
  assert.deepEqual({ code, signal }, { code: 0, signal: null }, context);
  assert.ok(model.turns.some(({ offered }) => offered), `the tool is offered to the model of ${context}`);
  assert.match(model.turns.at(-1).result ?? '', new RegExp(`Echo: ${word}`), context);
  assert.match(output, /The server said/, context);
  assert.deepEqual(model.strays, [], `hosts beyond this machine that ${agent.name} asked for`);
  return took;
}

/** Asserts that the daemon had nothing to complain about. */
function assertQuiet(daemon) {
  assert.doesNotMatch(daemon.output, /level=(WARN|ERROR)/);
}

for (const agent of agents) {
  test(`${agent.name} calls a tool by URL`, { timeout: 300_000 }, async (t) => {
    const daemon = await startDaemon(t);
    let seen;
    const during = async () => (seen = await clients(daemon));
    const took = await echo(t, agent, { server: { name: 'everything', url: String(daemon.mcp('everything')) }, word: 'engine', during });
    assert.equal(seen.length, 1, 'one client at the daemon during the run');
    const left = await clients(daemon);
    t.diagnostic(`${seen[0].name}, protocol ${seen[0].protocolVersion}, ${Math.round(took)} ms, ${left.length ? 'left its session behind' : 'ended its session'}`);
    assertQuiet(daemon);
  });

  // H7: names of the aggregate fit what agents make of them.
  test(`${agent.name} calls a tool of the aggregate`, { timeout: 300_000 }, async (t) => {
    const daemon = await startDaemon(t);
    await echo(t, agent, { server: { name: 'all', url: String(daemon.mcp()) }, tool: 'everything__echo', word: 'tender' });
    assertQuiet(daemon);
  });
}

// S2, M1: agents of one kind share a process and get their own words back; agents that declare other capabilities have another process.
test('two of each agent at once share a server process per kind', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const runs = agents.flatMap((agent) => [1, 2].map((i) => ({ agent, word: `${agent.name.replace(/\W/g, '')}${i}` })));
  const arrived = barrier(runs.length);
  let connections, servers;
  const during = async () => {
    await arrived();
    connections ??= await daemon.connections();
    servers ??= daemon.servers().length;
  };
  const server = { name: 'everything', url: String(daemon.mcp('everything')) };
  await Promise.all(runs.map(({ agent, word }) => echo(t, agent, { server, word, during })));
  // Claude Code speaks 2026-07-28, which has no handshake: its two name no session and share one.
  // An agent may be between two sessions of its own just now.
  const held = connections.reduce((sum, { refs }) => sum + refs, 0);
  assert.ok(held > connections.length && held < runs.length, `${held} sessions on ${connections.length} connections`);
  assert.ok(connections.length <= agents.length, `${connections.length} connections for ${agents.length} kinds of agent`);
  assert.equal(servers, connections.length);
  t.diagnostic(`${runs.length} agents, ${servers} server processes`);
  assertQuiet(daemon);
});

const connectable = spawnSync(binary, ['connect', '--help'], { encoding: 'utf8' }).stdout?.includes('roundhouse connect');

// H8: the command in place of the server's own.
for (const agent of agents) {
  test(`${agent.name} calls a tool through roundhouse connect`, { timeout: 300_000, skip: !connectable && 'this roundhouse has no connect command' }, async (t) => {
    const directory = mkdtempSync(join(tmpdir(), 'roundhouse-socket-'));
    t.after(() => rmSync(directory, { recursive: true, force: true }));
    const socket = join(directory, 'roundhouse.sock');
    const daemon = await startDaemon(t, { settings: { socket } });
    let seen;
    const during = async () => (seen = await clients(daemon));
    const server = { name: 'everything', command: binary, args: ['connect', 'everything', '--socket', socket, '--no-autostart', '--fallback', 'off'] };
    const took = await echo(t, agent, { server, word: 'whistle', during });
    // In 2026-07-28 what the agent listens to is a client of its own, beside that of the line.
    assert.equal(new Set(seen.map(({ session }) => session)).size, 1, 'one session at the daemon during the run');
    await until('the shim has ended', patience, () => processes(({ command }) => command.includes(socket)).length === 0);
    await until('its session has ended', patience, async () => (await clients(daemon)).length === 0);
    t.diagnostic(`${seen[0].name}, protocol ${seen[0].protocolVersion}, ${Math.round(took)} ms`);
    assertQuiet(daemon);
  });
}
