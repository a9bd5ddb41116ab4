// A scripted model: an HTTP server on loopback that speaks as much of three model APIs as coding agents need. It keeps no
// state of a conversation: what a request offers and brings says which step it is.

import { createServer } from 'node:http';
import { connect } from 'node:net';

/**
 * Starts a model that wants to call the tool of the given full name with args, and closes with the text that closing(result) returns or resolves to.
 * If the tool is not on offer it first uses the agent's search for tools. Returns {url, turns, strays}: turns are what agents
 * said to the model, each {offered, names, result} with whether the tool can be called, the full names of all tools on offer,
 * and the text of the tool's result, if any; strays are the hosts that agents tried to reach through this server as a
 * proxy: it lets them reach 127.0.0.1 alone.
 */
export async function startModel(t, { tool, args, closing }) {
  const model = { turns: [], strays: [] };
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, 'http://model');
    const dialect = request.method === 'POST' && dialects[pathname];
    if (!dialect) {
      if (/^https?:/.test(request.url)) model.strays.push(new URL(request.url).host);
      response.writeHead(404, { 'content-type': 'application/json' }).end('{"error":{"message":"not part of the script"}}');
      return;
    }
    let text = '';
    for await (const chunk of request.setEncoding('utf8')) text += chunk;
    const body = JSON.parse(text);
    const tools = dialect.tools(body);
    const results = new Map(dialect.results(body));
    const find = (...names) => tools.find(({ name }) => names.includes(name))?.call;
    // What a search finds is declared from then on, or else is called through tool_call.
    const search = find('tool_search', 'ToolSearch');
    const indirect = results.get('call_search')?.includes(`"name":"${tool}"`) && find('tool_call');
    const result = results.get('call_tool');
    model.turns.push({ offered: Boolean(find(tool) ?? indirect), names: tools.map(({ name }) => name), result });
    let say = { text: 'Yes.' };
    if (result !== undefined) say = { text: await closing(result) };
    else if (find(tool)) say = { id: 'call_tool', call: find(tool), args: JSON.stringify(args) };
    else if (indirect) say = { id: 'call_tool', call: indirect, args: JSON.stringify({ name: tool, arguments: args }) };
    else if (search && !results.has('call_search')) say = { id: 'call_search', call: search, args: JSON.stringify({ query: `select:${tool}` }) };
    if (body.stream) {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      for (const event of dialect.events(say, body)) response.write(frame(event));
      response.end();
    } else {
      response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(dialect.whole(say, body)));
    }
  });
  server.on('connect', (request, socket) => {
    const { hostname, port } = new URL(`http://${request.url}`);
    if (hostname !== '127.0.0.1') {
      model.strays.push(request.url);
      socket.end('HTTP/1.1 403 Forbidden\r\n\r\n');
      return;
    }
    const upstream = connect(port, hostname, () => {
      socket.write('HTTP/1.1 200 OK\r\n\r\n');
      upstream.pipe(socket).pipe(upstream);
    });
    upstream.on('error', () => socket.destroy());
    socket.on('error', () => upstream.destroy());
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  model.url = `http://127.0.0.1:${server.address().port}`;
  return model;
}

function frame(event) {
  if (typeof event === 'string') return `data: ${event}\n\n`;
  return `${event.type ? `event: ${event.type}\n` : ''}data: ${JSON.stringify(event)}\n\n`;
}

/** The text of a tool's result, which is a string or a list of parts. */
function textOf(content) {
  if (Array.isArray(content)) return content.map((part) => part.text ?? '').join('\n');
  return content ?? '';
}

/** OpenAI's chat completions. */
const chat = {
  tools: (body) => (body.tools ?? []).map((tool) => ({ name: tool.function.name, call: { name: tool.function.name } })),
  results: (body) => body.messages.filter(({ role }) => role === 'tool').map((message) => [message.tool_call_id, textOf(message.content)]),
  message(say) {
    if (say.text) return { role: 'assistant', content: say.text };
    return { role: 'assistant', content: null, tool_calls: [{ index: 0, id: say.id, type: 'function', function: { ...say.call, arguments: say.args } }] };
  },
  finish: (say) => (say.text ? 'stop' : 'tool_calls'),
  *events(say, body) {
    const chunk = (delta, finish = null) => ({ id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: body.model, choices: [{ index: 0, delta, finish_reason: finish }] });
    yield chunk(this.message(say));
    yield chunk({}, this.finish(say));
    yield { ...chunk({}), choices: [], usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 } };
    yield '[DONE]';
  },
  whole(say, body) {
    const choice = { index: 0, message: this.message(say), finish_reason: this.finish(say) };
    return { id: 'chatcmpl-1', object: 'chat.completion', created: 1, model: body.model, choices: [choice], usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 } };
  },
};

/** OpenAI's Responses. A tool may stand inside a namespace, which a call of it then names. */
const responses = {
  tools: (body) =>
    (body.tools ?? []).flatMap((tool) => {
      if (tool.type !== 'namespace') return [{ name: tool.name ?? tool.type, call: { name: tool.name } }];
      return tool.tools.map(({ name }) => ({ name: `${tool.name}__${name}`, call: { name, namespace: tool.name } }));
    }),
  results: (body) => body.input.filter(({ type }) => type === 'function_call_output').map((item) => [item.call_id, textOf(item.output)]),
  item(say) {
    if (say.text) return { type: 'message', id: 'msg_1', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: say.text, annotations: [] }] };
    return { type: 'function_call', id: 'fc_1', call_id: say.id, status: 'completed', ...say.call, arguments: say.args };
  },
  *events(say, body) {
    const whole = this.whole(say, body);
    yield { type: 'response.created', sequence_number: 0, response: { ...whole, status: 'in_progress', output: [], usage: null } };
    yield { type: 'response.output_item.added', sequence_number: 1, output_index: 0, item: { ...this.item(say), status: 'in_progress' } };
    yield { type: 'response.output_item.done', sequence_number: 2, output_index: 0, item: this.item(say) };
    yield { type: 'response.completed', sequence_number: 3, response: whole };
  },
  whole(say, body) {
    const usage = { input_tokens: 1, input_tokens_details: { cached_tokens: 0 }, output_tokens: 1, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 2 };
    return { id: 'resp_1', object: 'response', created_at: 1, status: 'completed', model: body.model, output: [this.item(say)], usage };
  },
};

/** Anthropic's Messages. */
const messages = {
  tools: (body) => (body.tools ?? []).map(({ name }) => ({ name, call: { name } })),
  results: (body) =>
    body.messages.flatMap(({ content }) => (Array.isArray(content) ? content : [])).filter(({ type }) => type === 'tool_result').map((block) => [block.tool_use_id, textOf(block.content)]),
  block: (say) => (say.text ? { type: 'text', text: say.text } : { type: 'tool_use', id: say.id, ...say.call, input: JSON.parse(say.args) }),
  stop: (say) => (say.text ? 'end_turn' : 'tool_use'),
  *events(say, body) {
    const whole = this.whole(say, body);
    yield { type: 'message_start', message: { ...whole, content: [], stop_reason: null } };
    if (say.text) {
      yield { type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } };
      yield { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: say.text } };
    } else {
      yield { type: 'content_block_start', index: 0, content_block: { ...this.block(say), input: {} } };
      yield { type: 'content_block_delta', index: 0, delta: { type: 'input_json_delta', partial_json: say.args } };
    }
    yield { type: 'content_block_stop', index: 0 };
    yield { type: 'message_delta', delta: { stop_reason: this.stop(say), stop_sequence: null }, usage: { output_tokens: 1 } };
    yield { type: 'message_stop' };
  },
  whole(say, body) {
    const usage = { input_tokens: 1, output_tokens: 1 };
    return { id: 'msg_1', type: 'message', role: 'assistant', model: body.model, content: [this.block(say)], stop_reason: this.stop(say), stop_sequence: null, usage };
  },
};

const dialects = { '/v1/chat/completions': chat, '/v1/responses': responses, '/v1/messages': messages };
