// Coding agents before a recorded model, unmodified but for its URL: every call that reaches the model is a turn of the agent's session.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { recorded, startRecorder } from '../model/recording.mjs';
import { agents, run } from './agents.mjs';
import { startModel } from './model.mjs';

// A.19, C1, C2, J2: two of each agent at once, each with a session of its own.
test('every model call of an agent is a turn of its session', { timeout: 300_000 }, async (t) => {
  const word = 'whistle';
  // Every session has a word and so a model of its own, of which the upstream's model is the name.
  const model = await startModel(t, { tool: 'mcp__everything__echo', args: { message: word }, closing: (result) => `The server said ${result}.` });
  const recorder = await startRecorder(t, model.url, { servers: ({ everything }) => ({ everything }) });
  const server = { name: 'everything', url: String(recorder.daemon.mcp('everything')) };
  const runs = agents.flatMap((agent) => [1, 2].map((i) => ({ agent, session: `${agent.name.replace(/\W+/g, '-')}-${i}` })));
  await Promise.all(
    runs.map(async ({ agent, session }) => {
      const { code, output } = await run(t, agent, { model: recorder.base(session), proxy: model.url, server, prompt: `Have the server echo ${word} for ${session}.` });
      assert.equal(code, 0, `${session}: ${output}`);
      assert.match(output, /The server said/, session);
    }),
  );
  assert.deepEqual(model.strays, []);
  let sum = 0;
  for (const { agent, session } of runs) {
    const turns = await recorder.turns(session);
    await recorded(recorder, session, turns.length);
    assert.ok(turns.length >= 2, `${session}: a turn that calls the tool, and one that closes`);
    sum += turns.length;
    let closed = false;
    for (const { call_id, outcome, error } of turns) {
      assert.equal(outcome, 'complete', error);
      const { request, response } = await recorder.turn(call_id);
      const said = JSON.stringify(request);
      for (const other of runs) if (other.session !== session) assert.ok(!said.includes(`for ${other.session}.`), `${session} has a call of ${other.session}`);
      closed ||= JSON.stringify(response).includes('The server said');
    }
    assert.ok(closed, session);
    const rows = await recorder.export(session, 'messages');
    assert.ok(rows.some((row) => JSON.stringify(row).includes(`Echo: ${word}`)), `${agent.name}: the tool's answer is in a trajectory`);
  }
  assert.equal(sum, model.turns.length, 'nothing reached the model unrecorded');
});
