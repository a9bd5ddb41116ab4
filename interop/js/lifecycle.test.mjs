// What becomes of server processes and waiting clients when sessions, servers or the daemon end.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { McpError } from '@modelcontextprotocol/sdk/types.js';

import { connect, text } from './clients.mjs';
import { patience, startDaemon, until } from './launch.mjs';

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
test('after the last session and the drain delay no server process is left', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const sessions = await busy(daemon);
  const begin = performance.now();
  await Promise.all(sessions.map((session) => session.leave()));
  await until('the first server has ended', patience, () => daemon.servers().length < 3);
  const took = performance.now() - begin;
  assert.ok(took >= 1_990, `servers wait out the drain delay of 2 s for the next session, and not ${took} ms`);
  await until('the servers have ended', patience, noneLeft(daemon));
  await until('no connection is left', patience, async () => (await daemon.connections()).length === 0); // they end a moment behind their last process
  // The next session starts a server anew.
  const session = await connect(daemon.mcp('everything'));
  assert.equal(text(await session.call('echo', { message: 'again' })), 'Echo: again');
  await session.leave();
});

// T1: an attachment within the drain delay keeps the process.
test('a session that comes within the drain delay finds the same process', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t, { settings: { pool: { drainDelay: '5s' } } });
  const before = await connect(daemon.mcp('memory'));
  const [{ pid }] = daemon.servers();
  await before.leave();
  await sleep(200);
  const after = await connect(daemon.mcp('memory'));
  await sleep(6_000);
  assert.ok(!(await after.call('read_graph')).isError);
  assert.deepEqual(daemon.servers().map((server) => server.pid), [pid]);
  await after.leave();
});

// H5, N3: a client that goes away without DELETE is idle, and what it held is freed in time.
test('clients that vanish without DELETE do not keep servers for ever', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t, { settings: { sessions: { idleTimeout: '1s', expireAfter: '2s' } } });
  const sessions = await busy(daemon);
  await Promise.all(sessions.map((session) => session.vanish()));
  await until('the servers have ended', patience, noneLeft(daemon));
});

/** Measures up to three times, until it takes less than a second: a machine may be busy with other things. Every time is shown. */
async function quickly(t, what, measure) {
  for (let run = 1; run <= 3; run++) {
    const took = await measure();
    t.diagnostic(`${what} after ${took.toFixed(0)} ms`);
    if (took < 1_000) return;
  }
  assert.fail(`${what} after more than a second, three times`);
}

// G1, P2
test('SIGTERM ends the daemon and all servers in under a second, with exit status 0', { timeout: 300_000 }, async (t) => {
  await quickly(t, 'ended', async () => {
    const daemon = await startDaemon(t);
    await busy(daemon);
    const begin = performance.now();
    daemon.signal('SIGTERM');
    const end = await daemon.ended;
    const took = performance.now() - begin;
    assert.deepEqual(end, { code: 0, signal: null });
    assert.deepEqual(daemon.allProcesses().map(({ command }) => command.join(' ')), [], 'nothing outlives the daemon');
    return took;
  });
});

// G1: a call in flight has its grace.
test('SIGTERM lets a call in flight finish', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const session = await connect(daemon.mcp('everything'));
  const call = session.call('trigger-long-running-operation', { duration: 3, steps: 1 });
  await daemon.calls('everything', 1);
  await sleep(200);
  daemon.signal('SIGTERM');
  assert.equal(text(await call), 'Long running operation completed. Duration: 3 seconds, Steps: 1.');
  assert.deepEqual(await daemon.ended, { code: 0, signal: null });
  assert.deepEqual(daemon.allProcesses().map(({ command }) => command.join(' ')), []);
});

// P1: however the daemon dies, and without a new start.
test('kill -9 of the daemon leaves no process behind', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  await busy(daemon);
  const begin = performance.now();
  daemon.signal('SIGKILL');
  await daemon.ended;
  await until('everything of the killed daemon has ended', patience, () => daemon.allProcesses().length === 0);
  t.diagnostic(`all ended after ${(performance.now() - begin).toFixed(0)} ms`);
});

// R1, R2, R3
test('kill -9 of a server answers every waiting client within a second, and the next call has a new process', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const sessions = await Promise.all([0, 1, 2, 3, 4].map((i) => connect(daemon.mcp('everything'), { name: `client-${i}` })));
  const bystander = await connect(daemon.mcp('memory'));
  const everything = () => daemon.servers().filter(({ command }) => command.some((word) => word.includes('server-everything')));
  await quickly(t, 'slowest answer', async () => {
    const calls = sessions.map((session) => session.call('trigger-long-running-operation', { duration: 300, steps: 1 }).then((result) => ({ error: result, at: performance.now() }), (error) => ({ error, at: performance.now() })));
    await daemon.calls('everything', 5);
    await sleep(500); // for the last of them to get there
    assert.equal(everything().length, 1);
    const [{ pid }] = everything();
    const begin = performance.now();
    process.kill(pid, 'SIGKILL');
    const answers = await Promise.all(calls);
    for (const { error } of answers) {
      assert.ok(error instanceof McpError, String(error));
      assert.equal(error.code, -32010, String(error));
      assert.equal(error.data.reason, 'interrupted');
      assert.equal(error.data.server, 'everything');
      assert.equal(error.data.sent, 'maybe');
    }
    const next = await Promise.all(sessions.map((session, i) => session.call('echo', { message: `back ${i}` })));
    next.forEach((result, i) => assert.equal(text(result), `Echo: back ${i}`));
    t.diagnostic(`next call answered after ${(performance.now() - begin).toFixed(0)} ms`);
    const fresh = everything();
    assert.equal(fresh.length, 1);
    assert.notEqual(fresh[0].pid, pid);
    return Math.max(...answers.map(({ at }) => at - begin));
  });
  assert.ok(!(await bystander.call('read_graph')).isError, 'another server notices nothing');
  await Promise.all([...sessions, bystander].map((session) => session.leave()));
});

// R3: attached sessions stay attached, and see nothing of it.
test('an idle session survives its server being killed', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const session = await connect(daemon.mcp('everything'));
  await session.call('echo', { message: 'one' });
  const [{ pid }] = daemon.servers();
  process.kill(pid, 'SIGKILL');
  await until('the daemon has noticed', patience, async () => (await daemon.connections()).every((one) => one.pid !== pid));
  assert.equal(text(await session.call('echo', { message: 'two' })), 'Echo: two');
  assert.deepEqual(session.errors.map(String), []);
  await session.leave();
});
