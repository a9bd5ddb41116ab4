// The validator itself: a good stream passes, and each way in which servers are known to spoil one does not.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { check } from './events.mjs';

const response = (status, output = [], more) => ({
  id: 'resp_1', object: 'response', created_at: 1, model: 'm', status, output, tools: [], tool_choice: 'auto', parallel_tool_calls: true,
  error: null, incomplete_details: null, instructions: null, metadata: {}, temperature: null, top_p: null, ...more,
}); // prettier-ignore

/** A good stream: a listing, a call, and a message; each event is named, so that a test can spoil it. */
function good() {
  const tools = [{ name: 'echo', input_schema: {} }];
  const list = { id: 'mcpl_1', type: 'mcp_list_tools', server_label: 's', tools };
  const call = { id: 'mcp_1', type: 'mcp_call', server_label: 's', name: 'echo', arguments: '{}', status: 'completed', output: 'x' };
  const part = { type: 'output_text', text: 'Hello', annotations: [] };
  const message = { id: 'msg_1', type: 'message', role: 'assistant', status: 'completed', content: [part] };
  const at = (output_index, item) => ({ output_index, item_id: item.id });
  const events = [
    { type: 'response.created', response: response('in_progress') },
    { type: 'response.in_progress', response: response('in_progress') },
    { type: 'response.output_item.added', output_index: 0, item: { ...list, tools: [] } },
    { type: 'response.mcp_list_tools.in_progress', ...at(0, list) },
    { type: 'response.mcp_list_tools.completed', ...at(0, list) },
    { type: 'response.output_item.done', output_index: 0, item: list },
    { type: 'response.output_item.added', output_index: 1, item: { ...call, arguments: '', status: 'in_progress', output: null } },
    { type: 'response.mcp_call.in_progress', ...at(1, call) },
    { type: 'response.mcp_call_arguments.delta', ...at(1, call), delta: '{}' },
    { type: 'response.mcp_call_arguments.done', ...at(1, call), arguments: '{}' },
    { type: 'response.mcp_call.completed', ...at(1, call) },
    { type: 'response.output_item.done', output_index: 1, item: call },
    { type: 'response.output_item.added', output_index: 2, item: { ...message, status: 'in_progress', content: [] } },
    { type: 'response.content_part.added', ...at(2, message), content_index: 0, part: { ...part, text: '' } },
    { type: 'response.output_text.delta', ...at(2, message), content_index: 0, delta: 'Hel', logprobs: [] },
    { type: 'response.output_text.delta', ...at(2, message), content_index: 0, delta: 'lo', logprobs: [] },
    { type: 'response.output_text.done', ...at(2, message), content_index: 0, text: 'Hello', logprobs: [] },
    { type: 'response.content_part.done', ...at(2, message), content_index: 0, part },
    { type: 'response.output_item.done', output_index: 2, item: message },
    { type: 'response.completed', response: response('completed', [list, call, message]) },
  ];
  return structuredClone(events.map((event, sequence_number) => ({ ...event, sequence_number })));
}

const written = (events) => events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join('');
const renumbered = (events) => events.map((event, sequence_number) => ({ ...event, sequence_number }));
const find = (events, type) => events.find((event) => event.type === type);

test('a good stream passes, and so does a part of it', () => {
  const events = good();
  check(`: comment\n\n${written(events)}`);
  check(written(events.slice(5)), { after: 4 });
  check(written(events.slice(0, 9)), { whole: false });
});

// B.2, B.3, case 57, case 59
const spoilt = {
  'no response.created first': (events) => renumbered(events.slice(1)),
  'two life cycles': (events) => renumbered([...events.slice(0, 6), ...events]),
  'a sequence number again': (events) => Object.assign(events[4], { sequence_number: 3 }) && events,
  'no last event': (events) => events.slice(0, -1),
  'something behind the last event': (events) => renumbered([...events, events[3]]),
  'an output_index that starts anew': (events) => Object.assign(find(events.slice(6), 'response.output_item.added'), { output_index: 0 }) && events,
  'a call that completes before its arguments': (events) => renumbered([...events.slice(0, 8), events[10], events[8], events[9], ...events.slice(11)]),
  'a call without output': (events) => delete events[11].item.output && events,
  'a call that is never done': (events) => renumbered(events.filter((_, i) => i !== 11)),
  'a listing that is added with tools': (events) => events[2].item.tools.push({ name: 'echo', input_schema: {} }) && events,
  'deltas that are not the text': (events) => Object.assign(events[15], { delta: 'p' }) && events,
  'an output that is not what was streamed': (events) => events.at(-1).response.output.reverse() && events,
  'a content_index that does not start anew': (events) => Object.assign(events[13], { content_index: 1 }) && events,
  'an event of another item': (events) => Object.assign(events[14], { item_id: 'mcp_1' }) && events,
  'a secret': (events) => events[0].response.tools.push({ type: 'mcp', server_label: 's', authorization: 'sentinel' }) && events,
  'an event that there is not': (events) => Object.assign(events[1], { type: 'response.started' }) && events,
};
for (const [what, spoil] of Object.entries(spoilt)) {
  test(`found: ${what}`, () => {
    assert.throws(() => check(written(spoil(good()))), assert.AssertionError);
  });
}

test('found: [DONE], and events without their names', () => {
  assert.throws(() => check(`${written(good())}data: [DONE]\n\n`), assert.AssertionError);
  assert.throws(() => check(written(good()).replaceAll(/event: .*\n/g, '')), assert.AssertionError);
});
