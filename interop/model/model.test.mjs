// Official clients of the model APIs behind the daemon: they get what the upstream says, and raise on everything that is no turn.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { startDaemon } from '../js/launch.mjs';
import { call } from './client.mjs';
import { apis, models, startUpstream } from './upstream.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const python = join(here, '.venv', 'bin', 'python');

async function start(t) {
  const upstream = await startUpstream(t);
  const llm = { upstreams: { scripted: { baseURL: upstream.url, responses: true } }, record: { policy: 'train' } };
  const daemon = await startDaemon(t, { servers: () => ({}), settings: { llm } });
  return { upstream, base: daemon.url };
}

/** Every way of calling every model, with whether it must succeed. */
function* cases() {
  for (const api of Object.keys(apis)) {
    yield { api, way: 'whole', model: 'good', good: true };
    yield { api, way: 'whole', model: 'bad', good: false };
    for (const [model, { turn }] of Object.entries(models)) {
      // The Responses API tells of its own failures by events, which who reads events sees.
      if (api === 'responses' && (model === 'error' || model === 'bad')) continue;
      for (const way of ['raw', 'helper']) yield { api, way, model, good: turn };
    }
  }
}

function judge({ api, way, model, good }, { said, raised }) {
  const what = `${api} ${way} ${model}`;
  if (!good) assert.ok(raised, `${what}: nothing was raised, but said ${said}`);
  else if (way === 'raw') assert.ok(Number(said) >= 3, `${what}: ${raised ?? said}`);
  else assert.equal(said, 'Hello', `${what}: ${raised}`);
}

// A.10, A.19, C4, C5: what is no turn is an error for each client in each way of reading.
test('JavaScript clients raise on everything that is no turn', async (t) => {
  const { base } = await start(t);
  for (const one of cases()) {
    judge(one, await call(base, 'js', one.api, one.way, one.model).then((said) => ({ said }), (error) => ({ raised: String(error) })));
  }
});

test('Python clients raise on everything that is no turn', async (t) => {
  assert.ok(existsSync(python), 'make interop installs the Python clients');
  const { base } = await start(t);
  const client = spawn(python, [join(here, 'client.py')], { stdio: ['pipe', 'pipe', 'inherit'] });
  t.after(() => client.kill());
  const lines = createInterface({ input: client.stdout })[Symbol.asyncIterator]();
  for (const { good, ...one } of cases()) {
    client.stdin.write(JSON.stringify({ base, session: 'py', ...one }) + '\n');
    judge({ good, ...one }, JSON.parse((await lines.next()).value));
  }
  client.stdin.end();
  await once(client, 'exit');
});

// C9: a client that gives up waiting and tries again gets the one answer; the model is not asked twice.
test('a retry gets the recorded answer', async (t) => {
  const { base, upstream } = await start(t);
  for (const [n, api] of Object.keys(apis).entries()) {
    assert.equal(await call(base, 'slow', api, 'whole', 'slow', { timeout: 1000, maxRetries: 3 }), 'Hello');
    assert.equal(upstream.asked('slow'), n + 1, api);
  }
});

// A.16 row 13: the upstream's own errors reach the client, who tries again as they say.
test('an upstream that is busy is asked again', async (t) => {
  const { base, upstream } = await start(t);
  assert.equal(await call(base, 'busy', 'chat', 'whole', 'busy', { maxRetries: 2 }), 'Hello');
  assert.equal(upstream.asked('busy'), 2);
});

// C2, C15: what names the session does not reach the upstream, and a body that is no generation keeps its bytes.
test('auxiliary requests pass', async (t) => {
  const { base } = await start(t);
  const answer = await fetch(`${base}/sessions/a/v1/messages/count_tokens?beta=true`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{"session_id":"a","model":"good","messages":[]}' });
  assert.deepEqual(await answer.json(), { input_tokens: 7, sent: { model: 'good', messages: [] } });
});
