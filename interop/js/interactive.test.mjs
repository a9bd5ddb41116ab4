// Requests that a shared server sends to its client: sampling and elicitation reach the client whose call they
// belong to, or nobody. Property M6.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { CreateMessageRequestSchema, ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

import { connect, text } from './clients.mjs';
import { startDaemon } from './launch.mjs';

/** A client that can sample and be asked, answers with its own name, and counts how often. */
async function interactive(daemon, name) {
  const asked = { sampling: 0, elicitation: 0 };
  const session = await connect(daemon.mcp('everything'), {
    name,
    capabilities: { sampling: {}, elicitation: {} },
    handlers: [
      [
        CreateMessageRequestSchema,
        async ({ params }) => {
          asked.sampling++;
          await sleep(50);
          return { model: `model-of-${name}`, role: 'assistant', content: { type: 'text', text: `${name} heard: ${params.messages[0].content.text}` } };
        },
      ],
      [
        ElicitRequestSchema,
        async () => {
          asked.elicitation++;
          await sleep(50);
          return { action: 'accept', content: { name } };
        },
      ],
    ],
  });
  const sample = () => session.call('trigger-sampling-request', { prompt: `prompt of ${name}` });
  const elicit = () => session.call('trigger-elicitation-request');
  return { ...session, asked, sample, elicit };
}

function assertSampled(result, name) {
  assert.ok(!result.isError, text(result));
  assert.match(text(result), new RegExp(`${name} heard: Resource trigger-sampling-request context: prompt of ${name}`));
  assert.match(text(result), new RegExp(`model-of-${name}`));
}

function assertElicited(result, name) {
  assert.ok(!result.isError, text(result));
  assert.match(text(result), new RegExp(`- Name: ${name}\\b`));
}

test('sampling and elicitation reach the one client with a call in flight', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const alice = await interactive(daemon, 'alice');
  const bob = await interactive(daemon, 'bob');
  assert.equal(daemon.servers().length, 1, 'they share');
  for (const one of [alice, bob, alice]) {
    assertSampled(await one.sample(), one.name);
    assertElicited(await one.elicit(), one.name);
  }
  assert.deepEqual(alice.asked, { sampling: 2, elicitation: 2 });
  assert.deepEqual(bob.asked, { sampling: 1, elicitation: 1 });
  for (const one of [alice, bob]) {
    assert.deepEqual(one.errors.map(String), []);
    await one.leave();
  }
});

for (const [kind, ask, assertDone] of [
  ['sampling', (one) => one.sample(), assertSampled],
  ['elicitation', (one) => one.elicit(), assertElicited],
]) {
  test(`${kind} with two clients in flight is refused with the reason, and the next attempt works`, { timeout: 300_000 }, async (t) => {
    const daemon = await startDaemon(t);
    const alice = await interactive(daemon, 'alice');
    const bob = await interactive(daemon, 'bob');
    const slow = alice.call('trigger-long-running-operation', { duration: 5, steps: 3 });
    slow.catch(() => {}); // It is awaited below; a failure before that should be the one that is reported.
    await daemon.calls('everything', 1);
    await sleep(200);
    const said = await ask(bob).then(
      (result) => (assert.equal(result.isError, true, text(result)), text(result)),
      (error) => String(error),
    );
    t.diagnostic(said);
    assert.match(said, /-32015|ambiguous|several|more than one/i);
    assert.deepEqual([alice.asked, bob.asked], [{ sampling: 0, elicitation: 0 }, { sampling: 0, elicitation: 0 }], 'nobody is asked in the dark');
    assert.equal(text(await slow), 'Long running operation completed. Duration: 5 seconds, Steps: 3.', 'the other call is not disturbed');

    // From now on the connection runs one client's calls at a time.
    const again = alice.call('trigger-long-running-operation', { duration: 0.5, steps: 1 });
    again.catch(() => {});
    await sleep(50);
    assertDone(await ask(bob), 'bob');
    await again;
    const both = await Promise.all([alice, bob, alice, bob].map(async (one) => [one.name, await ask(one)]));
    for (const [name, result] of both) assertDone(result, name);
    for (const one of [alice, bob]) await one.leave();
  });
}

// M7: who asked is answered, even if the client that should answer is gone.
test('a server whose client vanishes while asked is not left hanging', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  let asked;
  const reached = new Promise((done) => {
    asked = done;
  });
  const gone = await connect(daemon.mcp('everything'), {
    capabilities: { sampling: {}, elicitation: {} },
    handlers: [[CreateMessageRequestSchema, () => (asked(), new Promise(() => {}))]],
  });
  const lost = gone.call('trigger-sampling-request', { prompt: 'anyone?' }).catch((error) => error);
  await reached;
  await gone.leave();
  await lost;
  const bob = await interactive(daemon, 'bob');
  assertSampled(await bob.sample(), 'bob');
  await bob.leave();
});
