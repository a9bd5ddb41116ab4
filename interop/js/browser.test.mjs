// Browsers as exclusive instances: @playwright/mcp with the system's Chromium, if there is one.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { test } from 'node:test';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';

import { browser, skip } from './browser.mjs';
import { connect, text } from './clients.mjs';
import { patience, processes, startDaemon, until } from './launch.mjs';

/** A site that gives each browser the cookie that it asks for, and shows what cookies a browser has. */
async function site(t) {
  const server = createServer((request, response) => {
    const { searchParams } = new URL(request.url, 'http://x');
    const headers = { 'content-type': 'text/html' };
    if (searchParams.has('set')) headers['set-cookie'] = `who=${searchParams.get('set')}; Max-Age=600`;
    response.writeHead(200, headers);
    response.end(`<title>cookies</title><p>cookies: ${request.headers.cookie ?? 'none'}</p>`);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => server.close());
  return `http://127.0.0.1:${server.address().port}/`;
}

async function instances(daemon, name = 'browser') {
  const response = await fetch(new URL('/api/v1/instances', daemon.url));
  return (await response.json()).servers.find(({ server }) => server === name);
}

/** Every process of the browsers that ran in these directories, whoever its parent is by now: they are in its command. */
const browsersIn = (places) => processes(({ command }) => command.some((word) => places.some((place) => word.includes(place))));

async function nothingIsLeft(daemon, places) {
  await until('no process of a browser is left', patience, () => daemon.serverProcesses().length + browsersIn(places).length === 0);
  await until('the profiles are gone', patience, () => places.every((place) => !existsSync(place)));
}

/** The directories of instances: they are the temporary directories of the processes. */
function directories(daemon) {
  return [...new Set(daemon.serverProcesses().flatMap(({ pid }) => {
    try {
      return readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').filter((entry) => entry.startsWith('TMPDIR=')).map((entry) => entry.slice('TMPDIR='.length));
    } catch {
      return [];
    }
  }))];
}

async function see(session, url) {
  await session.call('browser_navigate', { url });
  return text(await session.call('browser_evaluate', { function: '() => document.body.innerText' }, { timeout: 60_000 }));
}

// I2, I3, I5, I7, N4, N5, case 12.
test('two sessions have a browser each, a third waits, and nothing of them is left', { skip, timeout: 400_000 }, async (t) => {
  const url = await site(t);
  const daemon = await startDaemon(t, { servers: () => ({ browser: browser({ max: 2, maxWait: '120s' }) }) });
  const [a, b, c] = await Promise.all(['a', 'b', 'c'].map((name) => connect(daemon.mcp('browser'), { name })));
  assert.ok((await c.client.listTools()).tools.some(({ name }) => name === 'browser_navigate'), 'a list needs no browser');
  await Promise.all([see(a, `${url}?set=a`), see(b, `${url}?set=b`)]);
  assert.match(await see(a, url), /cookies: who=a\b/);
  assert.match(await see(b, url), /cookies: who=b\b/);
  const places = directories(daemon);
  assert.equal(places.length, 2, `each has a directory: ${places}`);

  const third = see(c, url);
  await until('the third session waits', patience, async () => (await instances(daemon)).waiting.length === 1);
  assert.equal((await instances(daemon)).leased, 2);
  await a.leave();
  assert.match(await third, /cookies: none/, 'nothing of the first session is left for the third');

  await Promise.all([b.leave(), c.leave()]);
  await nothingIsLeft(daemon, places);
  const status = await (await fetch(new URL('/api/v1/status', daemon.url))).json();
  assert.equal(status.cleanups.ok, 3, JSON.stringify(status.cleanups));
});

// A6, I2, I3, I7, N5: the same for sessions that the calls of one client name, such as those of agents behind one shim.
test('two sessions through one shim have a browser each, a third waits, and nothing of them is left', { skip, timeout: 400_000 }, async (t) => {
  const url = await site(t);
  const daemon = await startDaemon(t, { servers: () => ({ browser: browser({ max: 2, min: 1, maxWait: '120s' }), strict: browser({ max: 1, min: 1, maxWait: '5s' }) }) });
  const shim = async (server) => {
    const client = new Client({ name: 'agents', version: '1' });
    const args = ['connect', server, '--url', daemon.url, '--no-autostart', '--fallback', 'off'];
    await client.connect(new StdioClientTransport({ command: daemon.executable, args, stderr: 'inherit' }), { timeout: 60_000 });
    t.after(() => client.close());
    return {
      client,
      as: (session) => ({ call: (name, args, options) => client.callTool({ name, arguments: { ...args, session_id: session } }, undefined, { timeout: 90_000, ...options }) }),
    };
  };
  const { client, as } = await shim('browser');
  const { tools } = await client.listTools();
  assert.ok(tools.every(({ inputSchema }) => inputSchema.properties.session_id && !inputSchema.required?.includes('session_id')), 'the tools take a session');
  await Promise.all([see(as('a'), `${url}?set=a`), see(as('b'), `${url}?set=b`)]);
  assert.match(await see(as('a'), url), /cookies: who=a\b/);
  assert.match(await see(as('b'), url), /cookies: who=b\b/);
  const leases = (await instances(daemon)).instances.filter(({ state }) => state === 'leased');
  assert.deepEqual(leases.map(({ session }) => session).sort(), ['a', 'b']);
  const places = directories(daemon);
  assert.ok(browsersIn(places).length > 6, 'browsers are many processes');

  const third = see(as('c'), url);
  await until('the third session waits', patience, async () => (await instances(daemon)).waiting.length === 1);
  const end = (session) => fetch(new URL(`/api/v1/sessions/${session}`, daemon.url), { method: 'DELETE' });
  assert.equal((await end('a')).status, 204);
  assert.match(await third, /cookies: none/, 'nothing of the first session is left for the third');
  places.push(...directories(daemon));

  const strict = await shim('strict');
  await until('one is ready', patience, async () => (await instances(daemon, 'strict')).warm === 1);
  await strict.as('d').call('browser_tabs', { action: 'list' });
  await assert.rejects(strict.as('e').call('browser_tabs', { action: 'list' }), /1 of 1 are lent to 1 session, the longest for \d+/, 'who waits in vain learns why');

  daemon.signal('SIGTERM');
  assert.equal((await daemon.ended).code, 0, daemon.output);
  await nothingIsLeft(daemon, [...new Set(places)]);
});

const median = (numbers) => numbers.toSorted((x, y) => x - y)[Math.floor(numbers.length / 2)];

// I1, I6: a warm browser is there at once. The lease alone, without what the browser does, is that of a call which no browser
// has to do anything for. Who shares the machine makes single measurements worthless, so they are repeated if need be.
test('a first call with a warm browser takes at most a third of one with a cold one, the lease a twentieth', { skip, timeout: 400_000 }, async (t) => {
  const url = await site(t);
  const daemon = await startDaemon(t, {
    servers: () => ({
      cold: browser({ max: 1, idleTimeout: '100ms' }),
      warm: browser({ max: 1, min: 1, warmup: { tool: 'browser_navigate', arguments: { url: 'about:blank' } } }),
    }),
  });
  const timed = async (call) => {
    const begun = performance.now();
    await call();
    return performance.now() - begun;
  };
  const visit = async (server, ready, measure) => {
    const session = await connect(daemon.mcp(server));
    await until(`there is what a session of ${server} finds`, patience, ready);
    await measure((name, args = {}) => timed(() => session.call(name, args, { timeout: 60_000 }).catch(() => {})));
    await session.leave();
  };
  const cold = [];
  const warm = [];
  const lease = [];
  for (let round = 1; ; round++) {
    await visit('cold', async () => (await instances(daemon, 'cold')).instances.length === 0, async (call) => cold.push(await call('browser_navigate', { url })));
    await visit('warm', async () => (await instances(daemon, 'warm')).warm === 1, async (call) => {
      lease.push(await call('no_such_tool'));
      assert.equal((await instances(daemon, 'warm')).leased, 1);
      warm.push(lease.at(-1) + (await call('browser_navigate', { url })));
    });
    const [c, w, l] = [cold, warm, lease].map(median);
    const within = w <= c / 3 && l <= c / 20;
    if (round < 3 || (!within && round < 7)) continue;
    t.diagnostic(`${round} rounds, median: cold ${c.toFixed(0)} ms; warm ${w.toFixed(0)} ms, ${(100 * w / c).toFixed(0)} % of that; the lease ${l.toFixed(1)} ms, ${(100 * l / c).toFixed(1)} %`);
    assert.ok(within, `cold ${cold}, warm ${warm}, lease ${lease}`);
    break;
  }
});

// P1, N4, I7: also when the daemon is killed.
test('kill -9 of the daemon ends the browsers, and the next start removes their profiles', { skip, timeout: 300_000 }, async (t) => {
  const url = await site(t);
  const daemon = await startDaemon(t, { servers: () => ({ browser: browser({ max: 1 }) }) });
  const session = await connect(daemon.mcp('browser'));
  await see(session, url);
  assert.ok(daemon.serverProcesses().length > 3, 'a browser is many processes');
  const places = directories(daemon);
  daemon.signal('SIGKILL');
  await daemon.ended;
  await until('no process of a browser is left', patience, () => daemon.serverProcesses().length + browsersIn(places).length === 0);
  await daemon.start();
  assert.deepEqual(places.filter(existsSync), [], 'the next start removes the profiles');
});
