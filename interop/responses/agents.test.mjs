// The OpenAI Agents SDK, which reads and replays the items of the API in its own way.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

import { Agent, hostedMcpTool, OpenAIResponsesModel, run, setTracingDisabled, tool } from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';

import { startWorld } from './world.mjs';

setTracingDisabled(true);

/** A hosted tool of the server that a label names, for which the SDK has no words: it wants a URL. */
const labelled = (server_label, more) => ({ type: 'hosted_tool', name: 'hosted_mcp', providerData: { type: 'mcp', server_label, require_approval: 'never', ...more } });
const lines = (file) => (existsSync(file) ? readFileSync(file, 'utf8').split('\n').length - 1 : 0);

// X1, B.5.8
test('the Agents SDK', async (t) => {
  const world = await startWorld(t);
  const client = new OpenAI({ apiKey: 'dummy', baseURL: `${world.base}/v1`, maxRetries: 0 });
  const agent = (model, ...tools) => new Agent({ name: 'Agent', instructions: 'Be brief.', model: new OpenAIResponsesModel(client, model), tools });
  /** Runs an agent in both ways and returns what came of it. */
  const both = async (...args) => {
    const whole = await run(...args);
    const streamed = await run(...args, { stream: true });
    for await (const _ of streamed);
    await streamed.completed;
    return [whole, streamed];
  };
  const step = (name, body) =>
    t.test(name, async () => {
      await body();
      checked += world.checkStreams();
    });
  let checked = 0;

  await step('text', async () => {
    for (const { finalOutput } of await both(agent('text'), 'Hi')) assert.equal(finalOutput, 'Hello, world.');
  });

  await step('functions run in the client', async () => {
    const weather = tool({ name: 'get_weather', description: 'The weather.', parameters: z.object({ city: z.string() }), execute: ({ city }) => `sunny in ${city}` });
    for (const { finalOutput } of await both(agent('function', weather), 'How is the weather?')) assert.equal(finalOutput, 'It is sunny in Paris.');
  });

  for (const [where, server] of [
    ['by label', labelled('everything', { allowed_tools: ['echo'] })],
    ['by URL', hostedMcpTool({ serverLabel: 'elsewhere', serverUrl: world.url.href, allowedTools: ['echo'] })],
  ]) {
    await step(`MCP tools ${where}`, async () => {
      for (const { finalOutput } of await both(agent('echo', server), 'Ask the tool.')) assert.match(finalOutput, /The tool said: .*ping/);
    });
  }

  await step('a conversation that goes on by id, and by items', async () => {
    const server = labelled('bad', { allowed_tools: ['echo'] });
    const first = await run(agent('rounds', server), 'Go.');
    assert.equal(first.finalOutput, 'one two three');
    const byID = await run(agent('history', server), 'What was that?', { previousResponseId: first.lastResponseId });
    const byItems = await run(agent('history', server), [...first.history, { role: 'user', content: 'What was that?' }]);
    assert.deepEqual(JSON.parse(byItems.finalOutput), JSON.parse(byID.finalOutput));
    assert.equal(JSON.parse(byID.finalOutput).filter(([role]) => role === 'tool').length, 3);
  });

  await step('approvals', async () => {
    const asking = labelled('bad', { require_approval: 'always', allowed_tools: ['ledger'] });
    for (const [decision, expected] of [['approve', 1], ['reject', 0]]) {
      const file = world.file(`agents-${decision}`);
      const clerk = agent('ledger', asking);
      const first = await run(clerk, file);
      assert.deepEqual([first.interruptions.length, lines(file)], [1, 0]);
      first.state[decision](first.interruptions[0]);
      const second = await run(clerk, first.state);
      assert.match(second.finalOutput, /The tool said/);
      assert.equal(lines(file), expected);
    }
  });
  assert.ok(checked >= 4, `only ${checked} streams were checked`);
});
