// What official clients do besides reading an answer: they try again, leave early, and come too late.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer, request as send } from 'node:http';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { patience, until } from '../js/launch.mjs';
import { apis, chat } from './apis.mjs';
import { python, startClients } from './clients.mjs';
import { says, startEngine, streams } from './engine.mjs';
import { recorded, startRecorder } from './recording.mjs';

const languages = ['JavaScript', 'Python'];
const go = new Set(); // models that wait no longer
const wait = (model) => until(`the test says so to ${model}`, patience, () => go.has(model));
const scripts = {};
for (const [api, { text, finish, last, whole }] of Object.entries(apis)) {
  scripts[`${api} slow`] = async ({ response }) => {
    await sleep(5_000);
    says(whole)({ response });
  };
  scripts[`${api} once`] = says(whole);
  scripts[`${api} busy`] = (call) => (call.count === 1 ? says({ error: { message: 'later' } }, { status: 503, headers: { 'retry-after-ms': '10' } }) : says(whole))(call);
  // The end comes when the client has left, and the daemon has had the time to see that.
  for (const language of languages) scripts[`${language}-${api} long`] = streams(...text, ({ body }) => wait(body.model), () => sleep(700), finish(), last);
  scripts[`${api} endless`] = streams(...text, ({ left }) => left);
  scripts[`${api} waits`] = scripts[`${api} late`] = streams(...text, ({ body }) => wait(body.model), finish(), last);
}

async function start(t, options) {
  const engine = await startEngine(t, scripts);
  const recorder = await startRecorder(t, engine.url, options);
  return { engine, recorder, clients: startClients(t), asked: (model) => engine.requests.filter(({ body }) => body?.model === model).length };
}

/** Runs for each client and API at once, with a session of its own. */
async function each(clients, run) {
  const pairs = Object.entries(clients).flatMap(([language, client]) => Object.keys(apis).map((api) => ({ client, api, session: `${language}-${api}`, who: `${language}, ${api}` })));
  await Promise.all(pairs.map(run));
}

/** Stands before the daemon. drop says how many answers do not get back to their client; count how many requests came. */
async function startRelay(t, target) {
  const relay = { drop: 0, count: 0 };
  const server = createServer(async (request, response) => {
    relay.count++;
    const drop = relay.drop-- > 0;
    const { method, url, headers } = request;
    const onward = send(new URL(url, target), { method, headers }, async (answer) => {
      if (drop) {
        for await (const piece of answer) void piece;
        request.socket.destroy();
        return;
      }
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    request.pipe(onward);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  relay.url = `http://127.0.0.1:${server.address().port}`;
  return relay;
}

// C9: a client that gives up waiting and tries again waits for the answer that is under way; the engine is asked once.
test('a retry during the call gets its answer', { timeout: 300_000 }, async (t) => {
  const { recorder, clients, asked } = await start(t);
  await each(clients, async ({ client, api, session, who }) => {
    const { text, error } = await client.ask({ api, how: 'create', base: recorder.base(session), model: `${api} slow`, retries: 5, timeout: 3 });
    assert.equal(error, undefined, who);
    assert.equal(text, 'Hello', who);
    const [turn] = await recorded(recorder, session, 1);
    assert.equal(turn.outcome, 'complete');
  });
  for (const api of Object.keys(apis)) assert.equal(asked(`${api} slow`), 2, 'once for each client');
});

// C9, A.15: an answer that got lost on its way to the client is given again.
test('a retry after the call gets the recorded answer', { timeout: 300_000 }, async (t) => {
  const { recorder, clients, asked } = await start(t);
  await each(clients, async ({ client, api, session, who }) => {
    const relay = await startRelay(t, recorder.daemon.url);
    relay.drop = 1;
    const { text, error } = await client.ask({ api, how: 'create', base: `${relay.url}/sessions/${session}`, model: `${api} once`, retries: 2 });
    assert.equal(error, undefined, who);
    assert.equal(text, 'Hello', who);
    assert.equal(relay.count, 2, who);
    await recorded(recorder, session, 1);
  });
  for (const api of Object.keys(apis)) assert.equal(asked(`${api} once`), 2, 'once for each client');
});

// A.16 row 13: the engine's own errors reach the client, who tries again as they say; both attempts are on record.
test('an engine that is busy is asked again', { timeout: 300_000 }, async (t) => {
  const { recorder, clients } = await start(t);
  const { text } = await clients.JavaScript.ask({ api: 'chat', how: 'create', base: recorder.base('busy'), model: 'chat busy', retries: 2 });
  assert.equal(text, 'Hello');
  const turns = await recorded(recorder, 'busy', 2);
  assert.deepEqual(turns.map(({ attempt, outcome, http_status }) => [attempt, outcome, http_status]), [[1, 'upstream_error', 503], [2, 'complete', 200]]);
});

// C8, A.15, A.16 row 31, A.18: the client is a real one, and really closes its connection.
test('a client that leaves has its turn recorded under train', { timeout: 300_000 }, async (t) => {
  const { recorder, clients } = await start(t);
  await each(clients, async ({ client, api, session, who }) => {
    const { error } = await client.ask({ api, how: 'leave', base: recorder.base(session), model: `${session} long` });
    go.add(`${session} long`);
    assert.equal(error, undefined, who);
    const [turn] = await recorded(recorder, session, 1);
    assert.equal(turn.outcome, 'complete', who);
    assert.equal(turn.delivered, 'partial', who);
  });
});

// C8, case 18.
test('a client that leaves ends its call under observe', { timeout: 300_000 }, async (t) => {
  const { recorder, clients } = await start(t, { policy: 'observe' });
  await each(clients, async ({ client, api, session, who }) => {
    const { error } = await client.ask({ api, how: 'leave', base: recorder.base(session), model: `${api} endless` });
    assert.equal(error, undefined, who);
    const [turn] = await recorded(recorder, session, 1);
    assert.equal(turn.outcome, 'client_gone', who);
    assert.equal(turn.delivered, 'partial', who);
  });
});

// C8, A.16 row 30.
test('a client that leaves before the answer begins has its turn recorded under train', { timeout: 300_000 }, async (t) => {
  const { recorder, clients } = await start(t);
  await each(clients, async ({ client, api, session, who }) => {
    const { error } = await client.ask({ api, how: 'create', base: recorder.base(session), model: `${api} slow`, timeout: 2 });
    assert.ok(error, who);
    const [turn] = await recorded(recorder, session, 1);
    assert.equal(turn.outcome, 'complete', who);
    assert.equal(turn.delivered, 'none', who);
  });
});

// C15: 409 with x-should-retry: false, or clients would try again.
test('after the seal clients give up at once', { timeout: 300_000 }, async (t) => {
  const { recorder, clients, asked } = await start(t);
  await each(clients, async ({ client, api, session, who }) => {
    const relay = await startRelay(t, recorder.daemon.url);
    const order = { api, how: 'create', base: `${relay.url}/sessions/${session}`, model: `${api} once`, retries: 3 };
    assert.equal((await client.ask(order)).text, 'Hello', who);
    await recorder.seal(session);
    for (const how of ['create', 'raw']) {
      relay.count = 0;
      const { error } = await client.ask({ ...order, how });
      assert.equal(error?.status, 409, who);
      assert.equal(error.name, 'ConflictError', who);
      assert.equal(relay.count, 1, who);
    }
  });
  for (const api of Object.keys(apis)) assert.equal(asked(`${api} once`), 2, 'once for each client');
});

// C5, C15, A.16 row 27: what was under way when the session was sealed cannot be recorded, and its client sees that.
test('a stream whose session is sealed ends in an error', { timeout: 300_000 }, async (t) => {
  const { recorder, clients } = await start(t);
  const asked = [];
  await each(clients, async ({ client, api, session, who }) => {
    asked.push(...['raw', 'helper'].map((how) => ({ who, answer: client.ask({ api, how, base: recorder.base(session), model: `${api} late` }) })));
    await until('both are under way', patience, async () => (await recorder.turns(session)).length === 2);
    assert.equal((await recorder.seal(session)).lost, 2, who);
  });
  for (const api of Object.keys(apis)) go.add(`${api} late`);
  for (const { who, answer } of asked) assert.ok((await answer).error, who);
  for (const session of new Set(asked.map(({ who }) => who.replace(', ', '-')))) for (const { outcome } of await recorder.turns(session)) assert.equal(outcome, 'lost', session);
});

// C3, C5, A.10, A.16 rows 26 and 27: without a table for it nothing can be written. Clients under train see an error in
// place of the end, those under observe the end; afterwards service resumes, and the sessions' verdicts tell.
test('what cannot be stored is an error under train alone', { timeout: 300_000 }, async (t) => {
  const { recorder, clients } = await start(t);
  const ask = (client, api, how, session, headers) => client.ask({ api, how, base: recorder.base(session), model: `${api} waits`, headers });
  const asked = Object.entries(clients).flatMap(([language, client]) =>
    Object.keys(apis).flatMap((api) =>
      ['raw', 'helper'].map((how) => {
        const who = `${language}-${api}-${how}`;
        return { who, train: ask(client, api, how, `${who}-train`), observe: ask(client, api, how, `${who}-observe`, { 'X-Roundhouse-Record': 'observe' }) };
      }),
    ),
  );
  for (const { who } of asked) await until('all are under way', patience, async () => (await recorder.turns(`${who}-train`)).length + (await recorder.turns(`${who}-observe`)).length === 2);
  const database = join(recorder.daemon.files, '..', 'state', 'roundhouse.db');
  change(database, 'ALTER TABLE results RENAME TO away');
  for (const api of Object.keys(apis)) go.add(`${api} waits`);
  for (const { who, train, observe } of asked) {
    assert.ok((await train).error, who);
    const { error, text } = await observe;
    assert.equal(error, undefined, who);
    assert.equal(text, 'Hello', who);
  }
  change(database, 'ALTER TABLE away RENAME TO results');
  const after = await clients.JavaScript.ask({ api: 'chat', how: 'create', base: recorder.base('after'), model: 'chat once' });
  assert.equal(after.text, 'Hello');
  assert.equal((await recorded(recorder, 'after', 1))[0].outcome, 'complete');
});

function change(database, statement) {
  execFileSync(python, ['-c', 'import sqlite3, sys\nsqlite3.connect(sys.argv[1]).execute(sys.argv[2])', database, statement]);
}

// C2, C15, A.16 rows 5 to 7: what names the session does not reach the engine, and is not recorded.
test('auxiliary requests pass', { timeout: 300_000 }, async (t) => {
  const { engine, recorder } = await start(t);
  const text = '{ "session_id":"a", "model" : "chat once","messages":[] }';
  const answer = await fetch(`${recorder.base('a')}/v1/messages/count_tokens?beta=true`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: text });
  assert.deepEqual(await answer.json(), chat.whole);
  const { path, body } = engine.requests.at(-1);
  assert.equal(path, '/v1/messages/count_tokens?beta=true');
  assert.deepEqual(body, { model: 'chat once', messages: [] });
  assert.deepEqual(await recorder.turns('a'), []);
});
