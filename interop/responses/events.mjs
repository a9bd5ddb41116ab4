// What a stream of the Responses API must be like, written down from the public description of the API. check(text) reads a
// stream as it came over the wire and returns its events; it throws at the first thing that is wrong, with the events up to there.

import assert from 'node:assert/strict';

const lifecycle = {
  'response.created': ['queued', 'in_progress'],
  'response.queued': ['queued'],
  'response.in_progress': ['in_progress'],
  'response.completed': ['completed'],
  'response.failed': ['failed', 'cancelled'],
  'response.incomplete': ['incomplete', 'cancelled'],
};
const last = ['response.completed', 'response.failed', 'response.incomplete', 'response.cancelled', 'error'];

/** The further members of each event that is not one of the life cycle, which all have type and sequence_number. */
const members = {
  'response.output_item.added': { output_index: 'number', item: 'object' },
  'response.output_item.done': { output_index: 'number', item: 'object' },
  'response.content_part.added': { output_index: 'number', item_id: 'string', content_index: 'number', part: 'object' },
  'response.content_part.done': { output_index: 'number', item_id: 'string', content_index: 'number', part: 'object' },
  'response.output_text.delta': { output_index: 'number', item_id: 'string', content_index: 'number', delta: 'string', logprobs: 'object' },
  'response.output_text.done': { output_index: 'number', item_id: 'string', content_index: 'number', text: 'string', logprobs: 'object' },
  'response.refusal.delta': { output_index: 'number', item_id: 'string', content_index: 'number', delta: 'string' },
  'response.refusal.done': { output_index: 'number', item_id: 'string', content_index: 'number', refusal: 'string' },
  'response.reasoning_text.delta': { output_index: 'number', item_id: 'string', content_index: 'number', delta: 'string' },
  'response.reasoning_text.done': { output_index: 'number', item_id: 'string', content_index: 'number', text: 'string' },
  'response.reasoning_summary_part.added': { output_index: 'number', item_id: 'string', summary_index: 'number', part: 'object' },
  'response.reasoning_summary_part.done': { output_index: 'number', item_id: 'string', summary_index: 'number', part: 'object' },
  'response.reasoning_summary_text.delta': { output_index: 'number', item_id: 'string', summary_index: 'number', delta: 'string' },
  'response.reasoning_summary_text.done': { output_index: 'number', item_id: 'string', summary_index: 'number', text: 'string' },
  'response.function_call_arguments.delta': { output_index: 'number', item_id: 'string', delta: 'string' },
  'response.function_call_arguments.done': { output_index: 'number', item_id: 'string', arguments: 'string' },
  'response.custom_tool_call_input.delta': { output_index: 'number', item_id: 'string', delta: 'string' },
  'response.custom_tool_call_input.done': { output_index: 'number', item_id: 'string', input: 'string' },
  'response.mcp_call_arguments.delta': { output_index: 'number', item_id: 'string', delta: 'string' },
  'response.mcp_call_arguments.done': { output_index: 'number', item_id: 'string', arguments: 'string' },
  'response.mcp_call.in_progress': { output_index: 'number', item_id: 'string' },
  'response.mcp_call.completed': { output_index: 'number', item_id: 'string' },
  'response.mcp_call.failed': { output_index: 'number', item_id: 'string' },
  'response.mcp_list_tools.in_progress': { output_index: 'number', item_id: 'string' },
  'response.mcp_list_tools.completed': { output_index: 'number', item_id: 'string' },
  'response.mcp_list_tools.failed': { output_index: 'number', item_id: 'string' },
  error: { message: 'string' },
};

/** The events of a text/event-stream. Each must be named like its type; a block without data is a comment. */
export function parse(text) {
  const events = [];
  const blocks = text.split(/\r?\n\r?\n/);
  blocks.pop(); // what is behind the last empty line is no event
  for (const block of blocks) {
    const lines = block.split(/\r?\n/).filter((line) => !line.startsWith(':'));
    if (lines.length === 0) continue;
    const field = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).replace(/^ /, ''));
    const data = field('data').join('\n');
    assert.notEqual(data, '[DONE]', 'the stream has a [DONE], which this API does not have');
    const event = JSON.parse(data);
    assert.deepEqual(field('event'), [event.type], `an event is not named by its type: ${block}`);
    events.push(event);
  }
  return events;
}

/** A response as every answer has it: of requests without a stream too. */
export function checkResponse(response) {
  assert.equal(response.object, 'response');
  assert.match(response.id, /^resp_/);
  const types = { created_at: 'number', model: 'string', parallel_tool_calls: 'boolean', status: 'string' };
  for (const [name, type] of Object.entries(types)) assert.equal(typeof response[name], type, `response.${name}`);
  for (const name of ['error', 'incomplete_details', 'instructions', 'metadata', 'temperature', 'top_p', 'tool_choice', 'tools', 'output']) assert.ok(name in response, `the response has no ${name}`);
  assert.ok(Array.isArray(response.output) && Array.isArray(response.tools));
  for (const tool of response.tools) {
    assert.ok(!tool.authorization || /^\W+$/.test(tool.authorization), 'the response shows an authorization');
    for (const value of Object.values(tool.headers ?? {})) assert.match(value, /^\W*$/, 'the response shows a header');
  }
  assert.equal(response.status === 'failed', response.error !== null, 'error is there when the response has failed');
  if (response.error) assert.deepEqual([typeof response.error.code, typeof response.error.message], ['string', 'string']);
  if (response.status === 'incomplete') assert.equal(typeof response.incomplete_details.reason, 'string');
  else assert.equal(response.incomplete_details, null);
  if (response.status === 'completed') {
    const { usage } = response;
    if (usage) assert.deepEqual(['input_tokens', 'output_tokens', 'total_tokens'].map((name) => typeof usage[name]), ['number', 'number', 'number']);
    for (const item of response.output) assert.ok(!['in_progress', 'calling'].includes(item.status), `${item.type} is ${item.status} in a completed response`);
  }
  for (const item of response.output) checkItem(item);
}

/** An item that is done. */
function checkItem(item) {
  assert.equal(typeof item.id, 'string', `${item.type} has no id`);
  const strings = {
    message: ['role', 'status'],
    function_call: ['call_id', 'name', 'arguments'],
    custom_tool_call: ['call_id', 'name', 'input'],
    mcp_list_tools: ['server_label'],
    mcp_call: ['server_label', 'name', 'arguments', 'status'],
    mcp_approval_request: ['server_label', 'name', 'arguments'],
    reasoning: [],
  }[item.type];
  assert.ok(strings, `an item is of the type ${item.type}`);
  for (const name of strings) assert.equal(typeof item[name], 'string', `${item.type}.${name}`);
  if (item.type === 'mcp_list_tools') for (const tool of item.tools) assert.deepEqual([typeof tool.name, typeof tool.input_schema], ['string', 'object']);
  if (item.type !== 'mcp_call') return;
  assert.match(item.status, /^(completed|failed|incomplete)$/);
  if (item.status === 'completed') assert.deepEqual([typeof item.output, item.error ?? null], ['string', null]);
  if (item.status === 'failed') {
    assert.match(item.error.type, /^(mcp_protocol_error|mcp_tool_execution_error|http_error)$/);
    if (item.error.type === 'mcp_tool_execution_error') assert.ok('content' in item.error);
    else assert.deepEqual([typeof item.error.code, typeof item.error.message], ['number', 'string']);
  }
}

/** What has been seen of one item. */
class Item {
  constructor({ item }) {
    this.added = item;
    this.state = 'added';
    this.parts = [];
    this.text = '';
    assert.equal(typeof item.id, 'string', `${item.type} is added without an id`);
    if ('status' in item) assert.equal(item.status, 'in_progress', `${item.type} is added as ${item.status}`);
    const empty = { message: 'content', mcp_list_tools: 'tools', mcp_call: 'arguments', function_call: 'arguments', custom_tool_call: 'input' }[item.type];
    if (empty) assert.equal(item[empty].length, 0, `${item.type} is added with ${empty}`);
  }

  /** move checks that the item was in one of the states from, and puts it into another. */
  move(event, from, to) {
    assert.ok(from.includes(this.state), `${event.type} of an item that is ${this.state}`);
    this.state = to;
  }

  part(event) {
    const part = this.parts[event.content_index ?? event.summary_index];
    assert.ok(part && !part.done, `${event.type} of a part that is not open`);
    return part;
  }

  take(event) {
    const { type } = event;
    switch (type) {
      case 'response.content_part.added':
      case 'response.reasoning_summary_part.added':
        assert.equal(event.content_index ?? event.summary_index, this.parts.length, 'parts of an item count from 0');
        this.parts.push({ text: event.part.text ?? event.part.refusal ?? '', ended: undefined });
        break;
      case 'response.output_text.delta':
      case 'response.refusal.delta':
      case 'response.reasoning_text.delta':
      case 'response.reasoning_summary_text.delta':
        assert.equal(this.part(event).ended, undefined, `${type} behind the part's done`);
        this.part(event).text += event.delta;
        break;
      case 'response.output_text.done':
      case 'response.refusal.done':
      case 'response.reasoning_text.done':
      case 'response.reasoning_summary_text.done':
        this.part(event).ended = event.text ?? event.refusal;
        assert.equal(this.part(event).ended, this.part(event).text, `${type} is not what the deltas said`);
        break;
      case 'response.content_part.done':
      case 'response.reasoning_summary_part.done': {
        const part = this.part(event);
        assert.equal(event.part.text ?? event.part.refusal, part.text);
        assert.equal(part.ended, part.text, `${type} before the text's done`);
        part.done = event.part;
        break;
      }
      case 'response.mcp_list_tools.in_progress':
        this.move(event, ['added'], 'listing');
        break;
      case 'response.mcp_list_tools.completed':
      case 'response.mcp_list_tools.failed':
        this.move(event, ['listing'], type.split('.').at(-1));
        break;
      case 'response.mcp_call.in_progress':
        this.move(event, ['added'], 'arguments');
        break;
      case 'response.function_call_arguments.delta':
      case 'response.custom_tool_call_input.delta':
      case 'response.mcp_call_arguments.delta':
        this.move(event, [type.includes('mcp') ? 'arguments' : 'added'], this.state);
        this.text += event.delta;
        break;
      case 'response.function_call_arguments.done':
      case 'response.custom_tool_call_input.done':
      case 'response.mcp_call_arguments.done':
        this.move(event, [type.includes('mcp') ? 'arguments' : 'added'], 'called');
        assert.equal(event.arguments ?? event.input, this.text, 'the deltas are not the whole');
        break;
      case 'response.mcp_call.completed':
      case 'response.mcp_call.failed':
        this.move(event, ['called'], type.split('.').at(-1));
        break;
      default:
        assert.fail(`${type} of an item`);
    }
    const kind = type.split('.')[1];
    if (kind.startsWith('mcp_')) assert.ok(kind.startsWith(this.added.type), `${type} of a ${this.added.type}`);
  }

  finish(item) {
    assert.deepEqual([item.id, item.type], [this.added.id, this.added.type], 'an item changes its id or type');
    checkItem(item);
    switch (item.type) {
      case 'message':
        assert.deepEqual(item.content.map(({ text, refusal }) => text ?? refusal), this.parts.map(({ text }) => text));
        assert.ok(this.parts.every(({ done }) => done), 'a part of a message that is done is not');
        break;
      case 'function_call':
      case 'custom_tool_call':
        assert.deepEqual([this.state, item.arguments ?? item.input], ['called', this.text]);
        break;
      case 'mcp_list_tools':
        assert.equal(this.state === 'failed', Boolean(item.error), 'a listing has an error if it failed');
        assert.match(this.state, /completed|failed/);
        break;
      case 'mcp_call':
        assert.equal(item.arguments, this.text);
        if (item.status === 'incomplete') assert.match(this.state, /called|arguments|failed/);
        else assert.equal(this.state, item.status);
    }
  }
}

/**
 * Checks a stream, or the part of it that is behind the sequence number after. whole is false for one that its client has left.
 */
export function check(text, { after = -1, whole = true } = {}) {
  const events = parse(text);
  try {
    checkEvents(events, { after, whole });
  } catch (error) {
    error.message += `\nof these events:\n${events.map((event) => JSON.stringify(event)).join('\n')}`;
    throw error;
  }
  return events;
}

/** Checks events that may come of several streams. */
export function checkEvents(events, { after = -1, whole = true } = {}) {
  const items = [];
  const done = [];
  let id;
  let ended;
  for (const [i, event] of events.entries()) {
    assert.equal(event.sequence_number, after + 1 + i, `${event.type} has the sequence number ${event.sequence_number}`);
    assert.equal(ended, undefined, `${event.type} behind ${ended}`);
    if (last.includes(event.type)) ended = event.type;
    const statuses = lifecycle[event.type];
    if (statuses) {
      const { response } = event;
      if (after === -1) assert.equal(event.type === 'response.created', i === 0, `${event.type} is event ${i}`);
      assert.ok(statuses.includes(response.status), `${event.type} of a response that is ${response.status}`);
      id ??= response.id;
      assert.equal(response.id, id);
      checkResponse(response);
      if (!ended) assert.equal(response.output.length, 0, `${event.type} with output`);
      else if (after === -1) assert.deepEqual(response.output, done, `the output of ${event.type} is not what was streamed`);
      if (ended && after === -1 && ended !== 'response.failed') assert.ok(items.every(({ state }) => state === 'done'), `${event.type} with an item that is not done`);
      continue;
    }
    const wanted = members[event.type];
    assert.ok(wanted, `there is no event ${event.type}`);
    for (const [name, type] of Object.entries(wanted)) assert.equal(typeof event[name], type, `${event.type}.${name}`);
    if (after > -1 || event.type === 'error') continue;
    assert.ok(i > 0, `the stream begins with ${event.type}`);
    if (event.type === 'response.output_item.added') {
      assert.equal(event.output_index, items.length, 'output_index is not contiguous');
      assert.ok(!items.some(({ added }) => added.id === event.item.id), 'two items have one id');
      items.push(new Item(event));
      continue;
    }
    const item = items[event.output_index];
    assert.ok(item && item.state !== 'done', `${event.type} of an item that is not open`);
    if (event.type === 'response.output_item.done') {
      item.finish(event.item);
      item.state = 'done';
      done[event.output_index] = event.item;
    } else {
      assert.equal(event.item_id, item.added.id, `${event.type} of another item`);
      item.take(event);
    }
  }
  if (whole) assert.ok(ended, 'the stream ends without its last event');
}
