// What the programs of official clients notice of every way in which an answer can end, and what is recorded of it. Each
// stream is read in four ways: by both SDKs, event by event and by the SDK's own aggregation.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { apis, chat, faults, messages, responses } from './apis.mjs';
import { startClients } from './clients.mjs';
import { cut, says, startEngine, streams } from './engine.mjs';
import { recorded, startRecorder } from './recording.mjs';

// Each case is {name, api, script, outcome, good}: what the engine does, the outcome that is recorded, and whether the programs get the
// answer; else all of them see an error, unless it is told, as answers are.
const cases = [];

function add(api, name, outcome, ...pieces) {
  cases.push({ name: `${api}: ${name}`, api, script: streams(...pieces), outcome, good: outcome === 'complete' || outcome === 'truncated' });
}

// A.10, and the rows of A.16 whose number is given.
for (const [api, { text, finish, last }] of Object.entries(apis)) {
  const begin = text.join('');
  add(api, 'whole', 'complete', begin, finish(), last); // 2
  add(api, 'byte by byte', 'complete', ...bytes(begin + finish() + last));
  add(api, 'comments', 'complete', ': hello\n\n', begin, ': still here\n\n', finish(), ': and here\n', last);
  add(api, 'CRLF and BOM', 'complete', '\ufeff', (begin + finish() + last).replaceAll('\n', '\r\n'));
  add(api, 'no space behind the colon', 'complete', (begin + finish() + last).replaceAll('data: ', 'data:').replaceAll('event: ', 'event:')); // 36
  add(api, 'something behind the end', 'complete', begin, finish(), last, last === chat.last ? text[1] : chat.last); // 37
  add(api, 'ends before its last event', 'upstream_cut', begin, finish()); // 21
  add(api, 'ends in the middle', 'upstream_cut', begin); // 22
  add(api, 'a line that is no JSON', 'unparsed', begin, 'data: {"choices":\n\n', finish(), last); // 23
  add(api, 'empty', 'upstream_cut'); // 24
  add(api, 'nothing but comments', 'upstream_cut', ': hello\n\n', ': hello\n\n'); // 24
  add(api, 'cut in the middle', 'upstream_cut', begin, cut); // 33
  add(api, 'cut before its last event', 'upstream_cut', begin, finish(), cut);
  add(api, 'cut in the middle of an event', 'upstream_cut', begin.slice(0, -9), cut);
}
add('chat', 'with usage', 'complete', ...chat.text, chat.finish(), chat.usage, chat.last);
add('chat', 'a limit', 'truncated', ...chat.text, chat.finish('length'), chat.last);
add('messages', 'a limit', 'truncated', ...messages.text, messages.finish('max_tokens'), messages.last);
add('chat', 'finish_reason error', 'upstream_error', ...chat.text, chat.finish('error'), chat.last); // 28, A.8
add('chat', 'finish_reason abort', 'upstream_error', ...chat.text, chat.finish('abort'), chat.last); // A.8
add('messages', 'stop_sequence without a sequence', 'upstream_error', ...messages.text, messages.finish('stop_sequence'), messages.last); // 29, A.8
for (const fault of ['openai', 'flat', 'nested']) {
  add('chat', `an error (${fault})`, 'upstream_error', ...chat.text, faults[fault]); // 17
  add('chat', `an error (${fault}), [DONE]`, 'upstream_error', ...chat.text, faults[fault], chat.last); // 16
  add('chat', `an error (${fault}) behind the end of the turn`, 'upstream_error', ...chat.text, chat.finish(), faults[fault]);
}
add('messages', 'an error', 'upstream_error', ...messages.text, faults.anthropic); // 17
add('messages', 'an error without its name', 'upstream_error', ...messages.text, faults.unnamed);
add('messages', 'an error behind the end of the turn', 'upstream_error', ...messages.text, messages.finish(), faults.anthropic);
add('responses', 'an error', 'upstream_error', ...responses.text, faults.responses);
// This is an answer of the API, whose status the program has to look at.
add('responses', 'failed', 'upstream_error', ...responses.text, faults.failed);
cases.at(-1).told = true;

// What is no stream: {name, api, script, outcome, good, status}; status is that of the error.
const whole = [];
for (const [api, { whole: answer }] of Object.entries(apis)) {
  const name = (what) => `${api}: ${what}`;
  whole.push(
    { name: name('whole'), api, script: says(answer), outcome: 'complete', good: true }, // 1
    { name: name('refused by the engine'), api, script: says({ error: { message: 'too long', type: 'invalid_request_error' } }, { status: 400 }), outcome: 'upstream_error', status: 400 }, // 13
    { name: name('overloaded'), api, script: says({ error: { message: 'busy' } }, { status: 503 }), outcome: 'upstream_error', status: 503 }, // 13
    { name: name('no JSON'), api, script: says('not-json'), outcome: 'unparsed', status: 500 }, // 18
    { name: name('a list'), api, script: says([]), outcome: 'unparsed', status: 500 }, // 18
    { name: name('cut'), api, outcome: 'upstream_cut', status: 502, script: half(answer) }, // 33
  );
}
whole.push({ name: 'chat: no choices', api: 'chat', script: says({ id: 'x', object: 'chat.completion' }), outcome: 'unparsed', status: 500 }); // 19

function bytes(text) {
  return [...text].map((one) => async ({ response }) => void (await new Promise((done) => response.write(one, done))));
}

/** A script that promises more than it sends. */
function half(answer) {
  return ({ response }) => {
    const text = JSON.stringify(answer);
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': text.length });
    response.write(text.slice(0, 40), () => response.socket.resetAndDestroy());
  };
}

const scripts = Object.fromEntries([...cases, ...whole].map(({ script }, i) => [`case-${i}`, script]));
[...cases, ...whole].forEach((one, i) => (one.model = `case-${i}`));

/** How each client of each language, in each of ways, saw a case. */
function observe(clients, ways, order) {
  return Promise.all(Object.entries(clients).flatMap(([language, client]) => ways.map(async (how) => ({ who: `${language}, ${how}`, ...(await client.ask({ ...order, how })) }))));
}

// C3, C5, C7, A.10: under train whole answers come as they do without roundhouse, and every other one raises; under observe clients notice nothing.
test('what the programs of official clients see, and what is recorded', { timeout: 600_000 }, async (t) => {
  const engine = await startEngine(t, scripts);
  const recorder = await startRecorder(t, engine.url);
  const clients = startClients(t);
  const left = [...cases.map((one) => [one, ['raw', 'helper']]), ...whole.map((one) => [one, ['create']])];
  const work = async () => {
    for (let next; (next = left.shift()); ) {
      const [one, ways] = next;
      await t.test(one.name, () => check({ engine, recorder, clients }, one, ways));
    }
  };
  await Promise.all([work(), work(), work()]);
});

async function check({ engine, recorder, clients }, { api, model, outcome, good, told, status }, ways) {
  const [without, train, observed] = await Promise.all(
    [
      { base: engine.url },
      { base: recorder.base(model) },
      { base: recorder.base(`${model}-observed`), headers: { 'X-Roundhouse-Record': 'observe' } },
    ].map((order) => observe(clients, ways, { api, model, ...order })),
  );
  assert.deepEqual(observed.map(plain), without.map(plain), 'under observe');
  if (good || told) assert.deepEqual(train.map(plain), without.map(plain), 'under train');
  else {
    for (const { who, error, ...seen } of train) {
      assert.ok(error, `${who} sees no error, but ${JSON.stringify(seen)}`);
      if (status) assert.equal(error.status, status, `${who}: ${error.message}`);
    }
  }
  if (good) assert.equal(train[0].text, 'Hello'); // and so the comparison is with an answer
  for (const session of [model, `${model}-observed`]) {
    const turns = await recorded(recorder, session, train.length);
    for (const turn of turns) assert.equal(turn.outcome, outcome, turn.error);
  }
}

/** What one saw; of an error whether there was one, and which status the engine gave. */
function plain({ who, error, ...seen }) {
  return { who, error: Boolean(error), ...seen };
}
