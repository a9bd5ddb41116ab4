// An LLM endpoint whose answers are scripted by the name of the model that is asked for, in the three model APIs.

import { createServer } from 'node:http';

const chunk = (delta, finish = null) => `data: ${JSON.stringify({ id: 'c1', object: 'chat.completion.chunk', created: 1, model: 'm', choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`;
const event = (data) => `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`;
const usage = { input_tokens: 3, output_tokens: 2 };
const output = [{ id: 'i1', type: 'message', status: 'completed', role: 'assistant', content: [{ type: 'output_text', text: 'Hello', annotations: [] }] }];
const response = (status, more = {}) => ({ id: 'r1', object: 'response', created_at: 1, model: 'm', status, output: [], parallel_tool_calls: true, tool_choice: 'auto', tools: [], ...more });
const part = { item_id: 'i1', output_index: 0, content_index: 0 };

// For each API the path, the whole answer, the pieces of a stream up to its terminal event, that event, what follows it, an error, and a
// terminal event that is none.
export const apis = {
  chat: {
    path: '/v1/chat/completions',
    whole: { id: 'c1', object: 'chat.completion', created: 1, model: 'm', choices: [{ index: 0, message: { role: 'assistant', content: 'Hello' }, finish_reason: 'stop' }], usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 } },
    pieces: [chunk({ role: 'assistant', content: 'Hel' }), ': ping\n\n', chunk({ content: 'lo' })],
    terminal: chunk({}, 'stop'),
    end: 'data: [DONE]\n\n',
    error: `data: ${JSON.stringify({ error: { message: 'boom', type: 'server_error' } })}\n\n`,
    bad: chunk({}, 'error'),
  },
  messages: {
    path: '/v1/messages',
    whole: { id: 'm1', type: 'message', role: 'assistant', model: 'm', content: [{ type: 'text', text: 'Hello' }], stop_reason: 'end_turn', stop_sequence: null, usage },
    pieces: [
      event({ type: 'message_start', message: { id: 'm1', type: 'message', role: 'assistant', model: 'm', content: [], stop_reason: null, stop_sequence: null, usage } }),
      event({ type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } }),
      event({ type: 'ping' }),
      event({ type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'Hello' } }),
      event({ type: 'content_block_stop', index: 0 }),
    ],
    terminal: event({ type: 'message_delta', delta: { stop_reason: 'end_turn', stop_sequence: null }, usage: { output_tokens: 2 } }),
    end: event({ type: 'message_stop' }),
    error: event({ type: 'error', error: { type: 'overloaded_error', message: 'boom' } }),
    bad: event({ type: 'message_delta', delta: { stop_reason: 'stop_sequence', stop_sequence: null }, usage: { output_tokens: 2 } }),
  },
  responses: {
    path: '/v1/responses',
    whole: response('completed', { output, usage: { ...usage, total_tokens: 5 } }),
    pieces: [
      event({ type: 'response.created', sequence_number: 0, response: response('in_progress') }),
      event({ type: 'response.output_item.added', sequence_number: 1, output_index: 0, item: { ...output[0], status: 'in_progress', content: [] } }),
      event({ type: 'response.content_part.added', sequence_number: 2, ...part, part: { type: 'output_text', text: '', annotations: [] } }),
      event({ type: 'response.output_text.delta', sequence_number: 3, ...part, delta: 'Hello' }),
      event({ type: 'response.output_text.done', sequence_number: 4, ...part, text: 'Hello' }),
      event({ type: 'response.content_part.done', sequence_number: 5, ...part, part: output[0].content[0] }),
      event({ type: 'response.output_item.done', sequence_number: 6, output_index: 0, item: output[0] }),
    ],
    terminal: '',
    end: event({ type: 'response.completed', sequence_number: 7, response: response('completed', { output, usage: { ...usage, total_tokens: 5 } }) }),
    error: event({ type: 'error', sequence_number: 7, code: 'server_error', message: 'boom', param: null }),
    bad: event({ type: 'response.failed', sequence_number: 7, response: response('failed', { error: { code: 'server_error', message: 'boom' } }) }),
  },
};

/** What each model does with a stream, and whether that is a turn. */
export const models = {
  good: { stream: (a) => [...a.pieces, a.terminal, a.end], turn: true },
  'no-end': { stream: (a) => [...a.pieces, a.terminal], turn: false },
  'no-terminal': { stream: (a) => a.pieces, turn: false },
  'end-alone': { stream: (a) => (a.terminal ? [...a.pieces, a.end] : a.pieces), turn: false },
  empty: { stream: () => [], turn: false },
  error: { stream: (a) => [...a.pieces, a.error], turn: false },
  bad: { stream: (a) => [...a.pieces, a.bad, a.end], turn: false },
  malformed: { stream: (a) => [...a.pieces, 'data: {broken\n\n', a.terminal, a.end], turn: false },
  cut: { stream: (a) => [...a.pieces, null], turn: false },
};

/** Starts the endpoint; asked(model) says how often a model was asked for. */
export async function startUpstream(t) {
  const counts = {};
  const server = createServer(async (request, reply) => {
    let text = '';
    for await (const piece of request) text += piece;
    const body = text && JSON.parse(text);
    const api = Object.values(apis).find((a) => a.path === request.url);
    if (!api) {
      reply.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ input_tokens: 7, sent: body }));
      return;
    }
    counts[body.model] = (counts[body.model] ?? 0) + 1;
    if (body.model === 'slow') await new Promise((done) => setTimeout(done, 1500));
    if (body.model === 'busy' && counts.busy === 1) {
      reply.writeHead(503, { 'content-type': 'application/json', 'retry-after-ms': '10' }).end('{"error":{"message":"later"}}');
      return;
    }
    if (!body.stream) {
      const whole = body.model === 'bad' ? { id: 'x' } : api.whole;
      reply.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(whole));
      return;
    }
    reply.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const piece of (models[body.model] ?? models.good).stream(api)) {
      if (piece === null) {
        setTimeout(() => request.socket.destroy(), 20);
        return;
      }
      reply.write(piece);
    }
    reply.end();
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, asked: (model) => counts[model] ?? 0 };
}
