// Every kind of official client on every kind of upstream: three sessions of each kind at once on one server, which do the
// same in the same order, so that their ids and tokens collide. What each is answered, told and asked is its own.
// Properties M1, M2, M3, M4, M6, M8, M9.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Child, freePort, patience, root, serverScript, startDaemon, until } from './launch.mjs';
import { kinds as kindsOf } from './peers.mjs';

const built = mkdtempSync(join(tmpdir(), 'roundhouse-matrix-'));
const python = join(root, 'python', '.venv', 'bin', 'python');
const kinds = kindsOf({ go: [join(built, 'client')], python: [python, join(root, 'python', 'client.py')] });
const perKind = 3;

before(() => {
  assert.ok(existsSync(python), 'make interop installs the Python SDK');
  execFileSync('go', ['build', '-o', built, './interop/matrix/...'], { cwd: resolve(root, '..') });
  for (const kind of Object.values(kinds)) kind.client = kind.start();
});
after(() => {
  for (const { client } of Object.values(kinds)) client?.end();
  rmSync(built, { recursive: true, force: true });
});

// The servers: what is called to what end, and what must come of it. who is the session that calls, and n its number, by which
// progress is told apart.
const everything = {
  echo: (mark) => ({ call: ['echo', { message: mark }], text: `Echo: ${mark}` }),
  count: (_, n) => ({
    call: ['trigger-long-running-operation', { duration: 0.4, steps: 2 + n }],
    text: `Long running operation completed. Duration: 0.4 seconds, Steps: ${2 + n}.`,
    progress: Array.from({ length: 2 + n }, (_, k) => [k + 1, 2 + n]),
  }),
  hold: (_, n) => ({ call: ['trigger-long-running-operation', { duration: 20, steps: 80 + n }] }),
  owns: (_, n, { total }) => total === 2 + n || total === 80 + n,
  ask: {
    sampling: (who) => ({ call: ['trigger-sampling-request', { prompt: who }], text: new RegExp(`${who} heard Resource trigger-sampling-request context: ${who}\\b`) }),
    elicitation: (who) => ({ call: ['trigger-elicitation-request', {}], text: new RegExp(`- Name: ${who}\\b`) }),
  },
};
const matrix = {
  echo: (mark) => ({ call: ['echo', { mark }], text: mark }),
  count: (who, n) => ({ call: ['count', { mark: who, steps: 2 + n }], text: who, progress: Array.from({ length: 2 + n }, (_, k) => [k + 1, 2 + n, who]) }),
  hold: (who) => ({ call: ['hold', { mark: `hold ${who}` }] }),
  owns: (who, _, { message }) => message === who || message === `hold ${who}`,
  held: { call: ['held', {}] },
  ask: {
    sampling: (who) => ({ call: ['ask', { kind: 'sampling', mark: who }], text: `${who} heard ${who}` }),
    elicitation: (who) => ({ call: ['ask', { kind: 'elicitation', mark: who }], text: `accept ${who}` }),
    roots: (who) => ({ call: ['ask', { kind: 'roots', mark: who }], text: `file:///${who}` }),
  },
  touch: (mark) => ({ call: ['touch', { mark }], text: 'touched' }),
  grow: (mark) => ({ call: ['grow', { mark }], text: 'grown' }),
};

// The upstreams: the server, its era, and how it is configured, given a port that is free for it. session: every session
// has a connection of its own. clients: 'stdio' means that clients start roundhouse connect. settings are further ones of the
// server: on stdio the SDK's server answers initialize whatever versions it is given, and the file has to say which era is meant.
const everythingHTTP = (port) => new Child(process.execPath, [serverScript('everything'), 'streamableHttp'], { env: { ...process.env, PORT: String(port) } });
const matrixHTTP = (era) => (port) => new Child(join(built, 'server'), ['-era', era, '-http', `127.0.0.1:${port}`]);
const upstreams = {
  'TypeScript, legacy, stdio': { server: everything, era: 'legacy', command: process.execPath, args: [serverScript('everything')] },
  'TypeScript, legacy, HTTP, a connection for each session': { server: everything, era: 'legacy', http: everythingHTTP, sharing: 'session' },
  'Go, legacy, stdio': { server: matrix, era: 'legacy', command: join(built, 'server'), args: ['-era', 'legacy'] },
  'Go, legacy, stdio, clients too': { server: matrix, era: 'legacy', command: join(built, 'server'), args: ['-era', 'legacy'], clients: 'stdio' },
  'Go, legacy, HTTP, a connection for each session': { server: matrix, era: 'legacy', http: matrixHTTP('legacy'), sharing: 'session' },
  'Go, legacy, HTTP, one connection': { server: matrix, era: 'legacy', http: matrixHTTP('legacy'), sharing: 'shared' },
  'Go, modern, stdio': { server: matrix, era: 'modern', command: join(built, 'server'), args: ['-era', 'modern'], settings: { era: 'modern' } },
  'Go, modern, stdio, clients too': { server: matrix, era: 'modern', command: join(built, 'server'), args: ['-era', 'modern'], settings: { era: 'modern' }, clients: 'stdio' },
  'Go, modern, HTTP, a connection for each session': { server: matrix, era: 'modern', http: matrixHTTP('modern'), sharing: 'session' },
  'Go, modern, HTTP, one connection': { server: matrix, era: 'modern', http: matrixHTTP('modern'), sharing: 'shared' },
};

/** Starts a server that is reached over HTTP, and gives its configuration. */
async function configure(t, { command, args, http, sharing, settings }) {
  if (command) return { command, args, ...settings };
  const port = await freePort();
  const child = http(port);
  t.after(() => child.killAll());
  const url = `http://127.0.0.1:${port}/mcp`;
  await until('the server listens', patience, () => fetch(url).then(({ body }) => (body?.cancel(), true), () => false));
  return { type: 'http', url, sharing };
}

/** Three sessions of one kind, on one upstream. number is different for every kind. */
class Cell {
  constructor({ era, client }, number, upstream, target) {
    Object.assign(this, { era, client, number, server: upstream.server, upstream, target });
    this.names = Array.from({ length: perKind }, (_, i) => `kind-${number}.${i}`);
  }

  numberOf(i) {
    return perKind * this.number + i;
  }

  /** Does f for each session at once, as f(name, i). */
  each(f) {
    return Promise.all(this.names.map(f));
  }

  async expect(who, { call, text, progress }, key = call[0]) {
    const got = await this.client.call(who, ...call, key);
    assert.ok(!got.isError, `${who}: ${call[0]}: ${got.text}`);
    if (text instanceof RegExp) assert.match(got.text, text);
    else assert.equal(got.text, text);
    if (!progress) return;
    let seen; // The Go SDK may hand over the last of it after the result.
    await until(`${who} has seen progress`, patience, async () => (seen = await this.client.progress(who, key)).length >= progress.length);
    assert.deepEqual(seen.map((one) => [one.progress, one.total, one.message].slice(0, progress[0].length)), progress, `progress of ${who}`);
  }

  async connects() {
    await this.each(async (who) => {
      assert.equal(await this.client.open(who, this.target(who)), this.era === 'modern' ? '2026-07-28' : '2025-11-25');
      const [tool] = this.server.echo('').call;
      assert.ok((await this.client.tools(who)).includes(tool));
    });
  }

  // M1, M2: answers, progress and cancellation.
  async calls() {
    await this.each(async (who, i) => {
      await Promise.all([0, 1, 2, 3, 4].map((k) => this.expect(who, this.server.echo(`${who}/${k}`), `echo ${k}`)));
      // Everybody counts to a total of their own: what went astray has the wrong one.
      const count = this.server.count(who, this.numberOf(i));
      await this.expect(who, count);
      if (i === 1) return this.expect(who, count);
      const held = this.client.call(who, ...this.server.hold(who, this.numberOf(i)).call, 'hold');
      const given = assert.rejects(held, /changed my mind|cancel/i);
      await until(`the call of ${who} has begun`, patience, async () => (await this.client.progress(who, 'hold')).length > 0);
      await this.client.cancel(who, 'hold');
      await given;
    });
    await this.each((who) => this.expect(who, this.server.echo(`${who} is still here`)));
    if (!this.server.held) return;
    await until('the server knows who cancelled', patience, async () => {
      const { text } = await this.client.call(this.names[1], ...this.server.held.call, 'held');
      const marks = text.match(/hold kind-\d+\.\d+/g) ?? [];
      return this.names.every((who, i) => marks.filter((mark) => mark === `hold ${who}`).length === (i === 1 ? 0 : 1));
    });
  }

  // M4, M9: updates of resources reach their subscribers, changes of lists everybody.
  async changes() {
    if (!this.server.touch) return;
    await this.each(async (who) => {
      await this.client.subscribe(who, `mark://${who}`);
      await this.client.subscribe(who, 'mark://all');
    });
    await this.each((who) => this.expect(who, this.server.touch(who)));
    await this.expect(this.names[0], this.server.touch('all'));
    await this.expect(this.names[1], this.server.grow(`kind-${this.number}`));
    await this.each(async (who) => {
      const mine = [`mark://${who}`, 'mark://all'].sort();
      await until(`${who} has heard of its resources and of changed tools`, patience, async () => {
        const { updated, changes } = await this.client.heard(who);
        return changes > 0 && mine.every((uri) => updated.includes(uri));
      });
      await until(`${who} sees the new tool`, patience, async () => (await this.client.tools(who)).includes(`grown-kind-${this.number}`));
      assert.deepEqual([...new Set((await this.client.heard(who)).updated)].sort(), mine, `what ${who} was told of`);
    });
  }

  // M6, M8: whoever called is asked, and nobody else.
  async questions() {
    await this.each(async (who) => {
      for (const question of Object.values(this.server.ask)) await this.asked(who, question(who));
    });
  }

  async asked(who, question) {
    if (this.era === 'modern' && this.upstream.era === 'legacy') {
      // It cannot be asked while its call runs, and is told so.
      const refused = await this.client.call(who, ...question.call, 'ask').then((got) => got.isError, () => true);
      assert.ok(refused, `${who}: ${JSON.stringify(question.call)}`);
      return;
    }
    for (let tries = 0; ; tries++) {
      const got = await this.client.call(who, ...question.call, 'ask');
      // A server on stdio does not say for whose call it asks. If several are running nobody is asked; after that, one runs at a time.
      if (got.isError && tries < 50 && /-32015|several clients have calls in flight/.test(got.text)) {
        await sleep(20);
        continue;
      }
      assert.ok(!got.isError, `${who}: ${JSON.stringify(question.call)}: ${got.text}`);
      assert.match(got.text, question.text instanceof RegExp ? question.text : new RegExp(`^${question.text}$`));
      return;
    }
  }

  async leaves() {
    await this.each(async (who, i) => {
      const { errors, late = [] } = await this.client.heard(who);
      const before = [...errors]; // closing may abort the SDK's own look for the rest of a cancelled call's stream
      await this.client.close(who);
      assert.deepEqual(before, [], `the SDK of ${who} saw nothing odd`);
      assert.deepEqual(late.filter((one) => !this.server.owns(who, this.numberOf(i), one)), [], `all progress of ${who} was its own`);
    });
  }
}

const phases = ['connects', 'calls', 'changes', 'questions', 'leaves'];

for (const [name, upstream] of Object.entries(upstreams)) {
  test(name, { timeout: 300_000, concurrency: true }, async (t) => {
    const configured = await configure(t, upstream);
    const daemon = await startDaemon(t, { servers: () => ({ matrix: configured }) });
    const target = (who) => {
      if (upstream.clients) return { command: [daemon.executable, 'connect', 'matrix', '--url', daemon.url, '--no-autostart', '--fallback', 'off'] };
      // Clients of the new era say nothing by which they could be told apart but the name of a session.
      return { url: String(upstream.sharing === 'session' ? new URL(`/sessions/${who}/mcp/matrix`, daemon.url) : daemon.mcp('matrix')) };
    };
    const cells = Object.entries(kinds).map(([kind, made], number) => [kind, new Cell(made, number, upstream, target)]);
    for (const phase of phases) {
      await Promise.all(cells.map(([kind, cell]) => t.test(`${kind} ${phase}`, () => cell[phase]())));
    }
  });
}
