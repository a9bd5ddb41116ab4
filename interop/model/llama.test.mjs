// A real engine: conversations of official clients with llama.cpp, and what they are worth to train on (J6).

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

import { root } from '../js/launch.mjs';
import { kind, startLlama } from './llama.mjs';
import { recorded, startRecorder } from './recording.mjs';

const model = 'gemma';
const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const tools = [{ type: 'function', function: { name: 'weather', description: 'The weather in a city.', parameters } }];
const weather = { Paris: 'cloudy', Madrid: 'warm' };

/** Two questions as they were answered elsewhere: from them the small model takes what to do. */
const examples = Object.entries({ Rome: 'sunny', Oslo: 'cold' }).flatMap(([city, it], i) => [
  { role: 'user', content: `What is the weather in ${city}?` },
  { role: 'assistant', content: '', tool_calls: [{ id: `call${i}`, type: 'function', function: { name: 'weather', arguments: JSON.stringify({ city }) } }] },
  { role: 'tool', tool_call_id: `call${i}`, content: it },
  { role: 'assistant', content: `It is ${it} in ${city}.` },
]);

// A bias for the token that ends a turn, without which the model does not end.
const sure = { temperature: 0, max_tokens: 40, logit_bias: { 106: 12 } };

async function start(t) {
  const recorder = await startRecorder(t, await startLlama(t), { engine: 'llamacpp' });
  return { recorder, openai: (session) => new OpenAI({ apiKey: 'none', baseURL: `${recorder.base(session)}/v1`, maxRetries: 0 }) };
}

/** The calls of a session with everything. */
async function everything(recorder, session, count) {
  return Promise.all((await recorded(recorder, session, count)).map(({ call_id }) => recorder.turn(call_id)));
}

/** A conversation: the model asks for the weather of each city, and tells it, in answer to ask(messages, more). Returns its messages. */
async function converse(ask, more) {
  const messages = [...examples];
  for (const city of Object.keys(weather)) {
    messages.push({ role: 'user', content: `What is the weather in ${city}?` });
    const { message, finish_reason } = (await ask(messages)).choices[0];
    assert.equal(finish_reason, 'tool_calls');
    const [call] = message.tool_calls;
    assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ['weather', { city }]);
    messages.push({ role: 'assistant', content: message.content ?? '', tool_calls: [{ id: call.id, type: 'function', function: { name: 'weather', arguments: call.function.arguments } }] });
    messages.push({ role: 'tool', tool_call_id: call.id, content: weather[city] });
    const answer = (await ask(messages, more)).choices[0];
    assert.match(answer.message.content, new RegExp(`${weather[city]} in ${city}`));
    assert.ok(!answer.logprobs, 'what only roundhouse asked for reaches the client');
    messages.push({ role: 'assistant', content: answer.message.content });
  }
  return messages;
}

/** Holds a token row against its turns, which are all of a conversation. */
function verify(row, turns) {
  for (const one of ['mask', 'logprobs']) assert.equal(row[one].length, row.tokens.length, one);
  const mask = new Array(row.tokens.length).fill(0);
  let told = 0;
  for (const { call_id, prompt_ids, output_ids, logprobs, usage } of turns) {
    assert.equal(prompt_ids.length, usage.prompt_tokens, call_id);
    assert.equal(output_ids.length, usage.completion_tokens, call_id);
    // What the engine was asked begins with all that it has read and said before: nothing is tokenised again.
    assert.deepEqual(row.tokens.slice(0, prompt_ids.length), prompt_ids, call_id);
    assert.ok(prompt_ids.length >= told, call_id);
    told = prompt_ids.length + output_ids.length;
    assert.deepEqual(row.tokens.slice(prompt_ids.length, told), output_ids, call_id);
    assert.deepEqual(row.logprobs.slice(prompt_ids.length, told), logprobs, call_id);
    mask.fill(1, prompt_ids.length, told);
  }
  assert.equal(row.tokens.length, told, 'the row ends with the last answer');
  assert.deepEqual(row.mask, mask, 'trained is what was sampled, and nothing else');
  row.logprobs.forEach((value, i) => mask[i] || assert.equal(value, 0));
}

// C10, J1 to J4, J6: every call of a tool conversation has the engine's own ids of its prompt and its answer, and they make one row.
test(`a conversation with tools becomes one row of tokens (${kind})`, { timeout: 300_000 }, async (t) => {
  const { recorder, openai } = await start(t);
  const client = openai('whole');
  const messages = await converse((messages) => client.chat.completions.create({ model, messages, tools, ...sure }));
  const turns = await everything(recorder, 'whole', 4);
  for (const { outcome, flags } of turns) assert.deepEqual([outcome, flags ?? []], ['complete', []]);
  const rows = await recorder.export('whole', 'tokens');
  assert.equal(rows.length, 1);
  assert.deepEqual(rows[0].call_ids, turns.map(({ call_id }) => call_id));
  verify(rows[0], turns);

  const report = await recorder.check('whole');
  assert.deepEqual([report.verdict.complete, report.hole, report.with_tokens, report.merge_ratio, report.trajectories, report.breaks, report.problems], [true, false, 4, 1, 1, undefined, undefined]);
  execFileSync(process.env.ROUNDHOUSE_BIN ?? join(root, '..', 'bin', 'roundhouse'), ['traces', 'check', 'whole', '--url', recorder.daemon.url]); // status 0, or it throws

  const [{ messages: kept }] = await recorder.export('whole', 'messages');
  assert.equal(kept.length, messages.length);
  assert.equal(kept.at(-1).content, messages.at(-1).content);
});

// C4, C10, C-71, J6: in streams the engine tells no id of the token that ends a turn, and few of those of a tool call. That some are missing is
// noticed by their number, and no row is made of the others; of an answer that ends at the limit none are missing.
test(`streams have their tokens where the engine tells them all (${kind})`, { timeout: 300_000 }, async (t) => {
  const { recorder, openai } = await start(t);
  const client = openai('streamed');
  const ask = (messages, more) => client.chat.completions.stream({ model, messages, tools, ...sure, ...more }).finalChatCompletion();
  const messages = await converse(ask, { max_tokens: 6 });
  await ask([...messages.slice(0, -1)]);
  const turns = await everything(recorder, 'streamed', 5);
  const lost = ['complete', 'token_mismatch'];
  assert.deepEqual(turns.map(({ outcome, flags }) => [outcome, ...(flags ?? [])]), [lost, ['truncated'], lost, ['truncated'], lost]);
  const rows = await recorder.export('streamed', 'tokens');
  assert.deepEqual(rows.map(({ call_ids }) => call_ids), [[turns[1].call_id, turns[3].call_id]]);
  verify(rows[0], [turns[1], turns[3]]);
  const report = await recorder.check('streamed');
  assert.deepEqual([report.verdict.complete, report.hole, report.with_tokens, report.problems], [true, false, 2, undefined]);
});

// C1, A.16 row 20, J6: the engine tells no ids in these two; their turns say so, and are whole in every other way.
test(`messages and responses are turns without tokens (${kind})`, { timeout: 300_000 }, async (t) => {
  const { recorder, openai } = await start(t);
  const anthropic = new Anthropic({ apiKey: 'none', baseURL: recorder.base('messages'), maxRetries: 0 });
  const said = [{ role: 'user', content: 'Say hello.' }];
  const one = { model, max_tokens: 8, temperature: 0, messages: said, tools: [{ name: 'weather', description: 'The weather in a city.', input_schema: parameters }] };
  const first = await anthropic.messages.create(one);
  said.push({ role: 'assistant', content: first.content }, { role: 'user', content: 'Again.' });
  const second = await anthropic.messages.stream(one).finalMessage();
  assert.ok(first.content[0].text && second.content[0].text);

  const client = openai('responses');
  const input = [{ role: 'user', content: 'Say hello.' }];
  const other = { model, max_output_tokens: 8, temperature: 0, input };
  const response = await client.responses.create(other);
  input.push(...response.output, { role: 'user', content: 'Again.' });
  let last; // read event by event: the SDK's helper takes no response that begins without an output, as the engine's does
  for await (const event of await client.responses.create({ ...other, stream: true })) last = event;
  assert.deepEqual([response.output_text.length > 0, last.type], [true, 'response.completed']);

  for (const session of ['messages', 'responses']) {
    for (const { outcome, flags, output_ids } of await everything(recorder, session, 2)) {
      assert.ok(['complete', 'truncated'].includes(outcome), `${session}: ${outcome}`);
      assert.deepEqual([flags, output_ids], [['no_tokens'], undefined], session);
    }
    assert.deepEqual(await recorder.export(session, 'tokens'), [], session);
    const rows = await recorder.export(session, 'messages');
    assert.deepEqual(rows.map(({ call_ids }) => call_ids.length), [2], session);
    const report = await recorder.check(session);
    assert.deepEqual([report.hole, report.problems], [false, undefined], session);
  }
});
