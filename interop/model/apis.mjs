// The three model APIs as an engine speaks them: the events of a short answer, whole answers, and the errors that engines send in the middle.

const data = (value) => `data: ${typeof value === 'string' ? value : JSON.stringify(value)}\n\n`;
const event = (value) => `event: ${value.type}\n${data(value)}`;

const chunk = (choices, more) => data({ id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'm', choices, ...more });
const usage = { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 };

/** text are the events up to the end of the text "Hello", finish those that end the turn, and last what ends the stream. */
export const chat = {
  path: '/v1/chat/completions',
  text: [
    chunk([{ index: 0, delta: { role: 'assistant', content: '' }, finish_reason: null }]),
    chunk([{ index: 0, delta: { content: 'Hel' }, finish_reason: null }]),
    chunk([{ index: 0, delta: { content: 'lo' }, finish_reason: null }]),
  ],
  finish: (reason = 'stop') => chunk([{ index: 0, delta: {}, finish_reason: reason }]),
  usage: chunk([], { usage }),
  last: data('[DONE]'),
  whole: { id: 'chatcmpl-1', object: 'chat.completion', created: 1, model: 'm', choices: [{ index: 0, message: { role: 'assistant', content: 'Hello' }, finish_reason: 'stop' }], usage },
  finished: 'stop',
};

const message = { id: 'msg_1', type: 'message', role: 'assistant', model: 'm', content: [], stop_reason: null, stop_sequence: null, usage: { input_tokens: 3, output_tokens: 1 } };

export const messages = {
  path: '/v1/messages',
  text: [
    event({ type: 'message_start', message }),
    event({ type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } }),
    event({ type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'Hel' } }),
    event({ type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'lo' } }),
    event({ type: 'content_block_stop', index: 0 }),
  ],
  finish: (reason = 'end_turn') => event({ type: 'message_delta', delta: { stop_reason: reason, stop_sequence: null }, usage: { output_tokens: 2 } }),
  last: event({ type: 'message_stop' }),
  whole: { ...message, content: [{ type: 'text', text: 'Hello' }], stop_reason: 'end_turn', usage: { input_tokens: 3, output_tokens: 2 } },
  finished: 'end_turn',
};

const item = { type: 'message', id: 'msg_1', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: 'Hello', annotations: [] }] };
const response = {
  id: 'resp_1', object: 'response', created_at: 1, status: 'completed', model: 'm', output: [item], parallel_tool_calls: true, tool_choice: 'auto', tools: [], error: null, incomplete_details: null, instructions: null,
  metadata: {}, temperature: 1, top_p: 1, usage: { input_tokens: 3, input_tokens_details: { cached_tokens: 0 }, output_tokens: 2, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 5 },
}; // prettier-ignore
const begun = { ...response, status: 'in_progress', output: [], usage: null };
const part = { output_index: 0, content_index: 0, item_id: 'msg_1' };

export const responses = {
  path: '/v1/responses',
  text: [
    event({ type: 'response.created', sequence_number: 0, response: begun }),
    event({ type: 'response.output_item.added', sequence_number: 1, output_index: 0, item: { ...item, status: 'in_progress', content: [] } }),
    event({ type: 'response.content_part.added', sequence_number: 2, ...part, part: { type: 'output_text', text: '', annotations: [] } }),
    event({ type: 'response.output_text.delta', sequence_number: 3, ...part, delta: 'Hel', logprobs: [] }),
    event({ type: 'response.output_text.delta', sequence_number: 4, ...part, delta: 'lo', logprobs: [] }),
    event({ type: 'response.output_item.done', sequence_number: 5, output_index: 0, item }),
  ],
  finish: () => '',
  last: event({ type: 'response.completed', sequence_number: 6, response }),
  whole: response,
  finished: 'completed',
};

export const apis = { chat, messages, responses };

/** The errors that engines send, as events. */
export const faults = {
  openai: data({ error: { message: 'out of memory', type: 'server_error', param: null, code: 500 } }),
  flat: data({ object: 'error', message: 'out of memory', type: 'internal_server_error', code: 500 }),
  nested: data({ error: { object: 'error', message: 'out of memory', type: 'internal_server_error', code: 500 } }),
  anthropic: event({ type: 'error', error: { type: 'api_error', message: 'out of memory' } }),
  unnamed: data({ type: 'error', error: { type: 'api_error', message: 'out of memory' } }),
  responses: event({ type: 'error', sequence_number: 6, code: 'server_error', message: 'out of memory', param: null }),
  failed: event({ type: 'response.failed', sequence_number: 6, response: { ...begun, status: 'failed', error: { code: 'server_error', message: 'out of memory' } } }),
};
