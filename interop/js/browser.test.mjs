// Browsers as exclusive instances: @playwright/mcp with the system's Chromium, if there is one.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { test } from 'node:test';

import { browser, skip } from './browser.mjs';
import { connect, text } from './clients.mjs';
import { startDaemon, until } from './launch.mjs';

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

async function instances(daemon) {
  const response = await fetch(new URL('/api/v1/instances', daemon.url));
  return (await response.json()).servers.find(({ server }) => server === 'browser');
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
test('two sessions have a browser each, a third waits, and nothing of them is left', { skip, timeout: 180_000 }, async (t) => {
  const url = await site(t);
  const daemon = await startDaemon(t, { servers: () => ({ browser: browser({ max: 2, maxWait: '60s' }) }) });
  const [a, b, c] = await Promise.all(['a', 'b', 'c'].map((name) => connect(daemon.mcp('browser'), { name })));
  assert.ok((await c.client.listTools()).tools.some(({ name }) => name === 'browser_navigate'), 'a list needs no browser');
  await Promise.all([see(a, `${url}?set=a`), see(b, `${url}?set=b`)]);
  assert.match(await see(a, url), /cookies: who=a\b/);
  assert.match(await see(b, url), /cookies: who=b\b/);
  const places = directories(daemon);
  assert.equal(places.length, 2, `each has a directory: ${places}`);

  const third = see(c, url);
  await until('the third session waits', 20_000, async () => (await instances(daemon)).waiting.length === 1);
  assert.equal((await instances(daemon)).leased, 2);
  await a.leave();
  assert.match(await third, /cookies: none/, 'nothing of the first session is left for the third');

  await Promise.all([b.leave(), c.leave()]);
  await until('no process of a browser is left', 20_000, () => daemon.serverProcesses().length === 0);
  await until('the profiles are gone', 5_000, () => places.every((place) => !existsSync(place)));
  const status = await (await fetch(new URL('/api/v1/status', daemon.url))).json();
  assert.equal(status.cleanups.ok, 3, JSON.stringify(status.cleanups));
});

// I1, I6: a warm browser is there at once.
test('a warm browser answers sooner than a cold one', { skip, timeout: 180_000 }, async (t) => {
  const url = await site(t);
  const first = async (settings, ready) => {
    const daemon = await startDaemon(t, { servers: () => ({ browser: browser(settings) }) });
    await ready(daemon);
    const session = await connect(daemon.mcp('browser'));
    const begun = performance.now();
    await session.call('browser_navigate', { url }, { timeout: 60_000 });
    const took = performance.now() - begun;
    await session.leave();
    daemon.killAll();
    return took;
  };
  const cold = await first({ max: 1 }, async () => {});
  const warm = await first({ min: 1, max: 1, warmup: { tool: 'browser_navigate', arguments: { url: 'about:blank' } } }, (daemon) =>
    until('one is warm', 60_000, async () => (await instances(daemon)).warm === 1),
  );
  t.diagnostic(`cold ${cold.toFixed(0)} ms, warm ${warm.toFixed(0)} ms, ratio ${(cold / warm).toFixed(1)}`);
  assert.ok(warm < cold, `cold ${cold} ms, warm ${warm} ms`);
});

// P1, N4, I7: also when the daemon is killed.
test('kill -9 of the daemon ends the browsers, and the next start removes their profiles', { skip, timeout: 120_000 }, async (t) => {
  const url = await site(t);
  const daemon = await startDaemon(t, { servers: () => ({ browser: browser({ max: 1 }) }) });
  const session = await connect(daemon.mcp('browser'));
  await see(session, url);
  assert.ok(daemon.serverProcesses().length > 3, 'a browser is many processes');
  const places = directories(daemon);
  daemon.signal('SIGKILL');
  await daemon.ended;
  await until('no process of a browser is left', 10_000, () => daemon.serverProcesses().length === 0);
  await daemon.start();
  assert.deepEqual(places.filter(existsSync), [], 'the next start removes the profiles');
});
