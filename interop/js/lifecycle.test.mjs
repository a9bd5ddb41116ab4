// What becomes of server processes and waiting clients when sessions, servers or the daemon end.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { McpError } from '@modelcontextprotocol/sdk/types.js';

import { connect, text } from './clients.mjs';
import { startDaemon, until } from './launch.mjs';

const names = ['everything', 'files', 'memory'];
const first = { everything: ['echo', { message: 'hello' }], files: ['list_allowed_directories', {}], memory: ['read_graph', {}] };

/** Two sessions on each of the three servers, each of which has had a result. */
async function busy(daemon) {
  const sessions = await Promise.all(names.flatMap((name) => [connect(daemon.mcp(name)), connect(daemon.mcp(name))]));
  await Promise.all(sessions.map((session, i) => session.call(...first[names[i >> 1]])));
  assert.equal(daemon.servers().length, 3);
  return sessions;
}

const noneLeft = (daemon) => () => daemon.serverProcesses().length === 0;

// T1, P2
test('after the last session and the drain delay no server process is left', { timeout: 60_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const sessions = await busy(daemon);
  await Promise.all(sessions.map((session) => session.leave()));
  await sleep(500);
  assert.equal(daemon.servers().length, 3, 'servers wait out the drain delay for the next session');
  await until('the servers have ended', 7_000, noneLeft(daemon));
  await until('no connection is left', 7_000, async () => (await daemon.connections()).length === 0); // they end a moment behind their last process
  // The next session starts a server anew.
  const session = await connect(daemon.mcp('everything'));
  assert.equal(text(await session.call('echo', { message: 'again' })), 'Echo: again');
  await session.leave();
});

// T1: an attachment within the drain delay keeps the process.
test('a session that comes within the drain delay finds the same process', { timeout: 60_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const before = await connect(daemon.mcp('memory'));
  const [{ pid }] = daemon.servers();
  await before.leave();
  await sleep(1_000);
  const after = await connect(daemon.mcp('memory'));
  await sleep(2_500);
  assert.ok(!(await after.call('read_graph')).isError);
  assert.deepEqual(daemon.servers().map((server) => server.pid), [pid]);
  await after.leave();
});

// H5, N3: a client that goes away without DELETE is idle, and what it held is freed in time.
test('clients that vanish without DELETE do not keep servers for ever', { timeout: 60_000 }, async (t) => {
  const daemon = await startDaemon(t, { settings: { sessions: { idleTimeout: '1s', expireAfter: '2s' } } });
  const sessions = await busy(daemon);
  await Promise.all(sessions.map((session) => session.vanish()));
  await until('the servers have ended', 20_000, noneLeft(daemon));
});

// G1, P2
test('SIGTERM ends the daemon and all servers in under a second, with exit status 0', { timeout: 60_000 }, async (t) => {
  const daemon = await startDaemon(t);
  await busy(daemon);
  const begin = performance.now();
  daemon.signal('SIGTERM');
  const end = await daemon.ended;
  const took = performance.now() - begin;
  t.diagnostic(`ended after ${took.toFixed(0)} ms`);
  assert.deepEqual(end, { code: 0, signal: null });
  assert.deepEqual(daemon.allProcesses().map(({ command }) => command.join(' ')), [], 'nothing outlives the daemon');
  assert.ok(took < 1_000, `took ${took} ms`);
});

// G1: a call in flight has its grace.
test('SIGTERM lets a call in flight finish', { timeout: 60_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const session = await connect(daemon.mcp('everything'));
  const call = session.call('trigger-long-running-operation', { duration: 1.5, steps: 1 }, { timeout: 10_000 });
  await sleep(300);
  daemon.signal('SIGTERM');
  assert.equal(text(await call), 'Long running operation completed. Duration: 1.5 seconds, Steps: 1.');
  assert.deepEqual(await daemon.ended, { code: 0, signal: null });
  assert.deepEqual(daemon.allProcesses().map(({ command }) => command.join(' ')), []);
});

// P1: however the daemon dies, and without a new start.
test('kill -9 of the daemon leaves no process behind', { timeout: 60_000 }, async (t) => {
  const daemon = await startDaemon(t);
  await busy(daemon);
  const begin = performance.now();
  daemon.signal('SIGKILL');
  await daemon.ended;
  await until('everything of the killed daemon has ended', 7_000, () => daemon.allProcesses().length === 0);
  t.diagnostic(`all ended after ${(performance.now() - begin).toFixed(0)} ms`);
});

// R1, R2, R3
test('kill -9 of a server answers every waiting client within a second, and the next call has a new process', { timeout: 60_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const sessions = await Promise.all([0, 1, 2, 3, 4].map((i) => connect(daemon.mcp('everything'), { name: `client-${i}` })));
  const bystander = await connect(daemon.mcp('memory'));
  const calls = sessions.map((session) => session.call('trigger-long-running-operation', { duration: 30, steps: 1 }).then((result) => ({ error: result, at: performance.now() }), (error) => ({ error, at: performance.now() })));
  await sleep(500); // for the calls to be on their way
  const everything = () => daemon.servers().filter(({ command }) => command.some((word) => word.includes('server-everything')));
  assert.equal(everything().length, 1);
  const [{ pid }] = everything();
  const begin = performance.now();
  process.kill(pid, 'SIGKILL');
  const answers = await Promise.all(calls);
  for (const { error, at } of answers) {
    assert.ok(error instanceof McpError, String(error));
    assert.equal(error.code, -32010, String(error));
    assert.equal(error.data.reason, 'interrupted');
    assert.equal(error.data.server, 'everything');
    assert.equal(error.data.sent, 'maybe');
    assert.ok(at - begin < 1_000, `answered after ${at - begin} ms`);
  }
  t.diagnostic(`slowest answer after ${Math.max(...answers.map(({ at }) => at - begin)).toFixed(0)} ms`);
  const next = await Promise.all(sessions.map((session, i) => session.call('echo', { message: `back ${i}` })));
  next.forEach((result, i) => assert.equal(text(result), `Echo: back ${i}`));
  t.diagnostic(`next call answered after ${(performance.now() - begin).toFixed(0)} ms`);
  const fresh = everything();
  assert.equal(fresh.length, 1);
  assert.notEqual(fresh[0].pid, pid);
  assert.ok(!(await bystander.call('read_graph')).isError, 'another server notices nothing');
  await Promise.all([...sessions, bystander].map((session) => session.leave()));
});

// R3: attached sessions stay attached, and see nothing of it.
test('an idle session survives its server being killed', { timeout: 60_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const session = await connect(daemon.mcp('everything'));
  await session.call('echo', { message: 'one' });
  process.kill(daemon.servers()[0].pid, 'SIGKILL');
  await sleep(300);
  assert.equal(text(await session.call('echo', { message: 'two' })), 'Echo: two');
  assert.deepEqual(session.errors.map(String), []);
  await session.leave();
});
