// Models that speak chat completions by a script. None keeps any state: what a request holds says what comes next.

import { setTimeout as sleep } from 'node:timers/promises';

/**
 * A script of startEngine. decide({body, tools, results}) returns the turn, or a promise of it: {text}, {calls: [{name, arguments}]} with
 * arguments as an object or as the text that the model says, or {status, error}; with cut, the connection drops before
 * the end. tools(part) is the full name of the offered tool whose name ends so, results are the texts of all tools' results since the last question.
 */
export function speaks(decide) {
  return async (call) => {
    const { response, body } = call;
    const offered = (body.tools ?? []).map((tool) => (tool.function ?? tool.custom).name);
    const from = body.messages.findLastIndex(({ role }) => role === 'user');
    const turn = await decide({
      body,
      tools: (part) => offered.find((name) => name.endsWith(part)) ?? `missing_${part}`,
      results: body.messages.slice(from + 1).filter(({ role }) => role === 'tool').map(({ content }) => (typeof content === 'string' ? content : content.map(({ text }) => text ?? '').join(''))),
    });
    if (turn.status) {
      response.writeHead(turn.status, { 'content-type': 'application/json' }).end(JSON.stringify({ error: { message: turn.error, type: 'invalid_request_error', code: null } }));
      return;
    }
    const calls = (turn.calls ?? []).map(({ name, arguments: args }, index) => ({
      index, id: `call_${call.count}_${index}_${name.slice(-8)}`, type: 'function', function: { name, arguments: typeof args === 'string' ? args : JSON.stringify(args) },
    })); // prettier-ignore
    const reason = calls.length > 0 ? 'tool_calls' : (turn.reason ?? 'stop');
    const usage = { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 };
    const base = { id: `chatcmpl-${call.count}`, created: 1, model: body.model };
    if (!body.stream) {
      if (turn.cut) return response.socket.destroy();
      const message = { role: 'assistant', content: turn.text ?? null, ...(calls.length > 0 && { tool_calls: calls.map(({ index, ...rest }) => rest) }) };
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ ...base, object: 'chat.completion', choices: [{ index: 0, message, finish_reason: reason }], usage }));
      return;
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const write = (value) => response.write(`data: ${JSON.stringify(value)}\n\n`);
    const chunk = (delta, finish_reason = null) => write({ ...base, object: 'chat.completion.chunk', choices: [{ index: 0, delta, finish_reason }] });
    chunk({ role: 'assistant', content: '' });
    for (const piece of (turn.text ?? '').match(/.{1,4}/gs) ?? []) {
      chunk({ content: piece });
      if (turn.pause) await sleep(turn.pause);
    }
    if (turn.cut) {
      await new Promise((done) => response.write('', done));
      return response.socket.resetAndDestroy();
    }
    for (const { index, id, type, function: { name, arguments: args } } of calls) {
      chunk({ tool_calls: [{ index, id, type, function: { name, arguments: '' } }] });
      for (const piece of args.match(/.{1,7}/gs) ?? []) chunk({ tool_calls: [{ index, function: { arguments: piece } }] });
    }
    chunk({}, reason);
    write({ ...base, object: 'chat.completion.chunk', choices: [], usage });
    response.end('data: [DONE]\n\n');
  };
}

/** The models. */
export const models = {
  text: speaks(() => ({ text: 'Hello, world.' })),

  // Asks the client's own function, and says what that said.
  function: speaks(({ results, tools }) => (results.length > 0 ? { text: `It is ${results[0]}.` } : { calls: [{ name: tools('get_weather'), arguments: { city: 'Paris' } }] })),

  // Asks the client's custom tool, which a chat completion offers as a function with one text.
  custom: speaks(({ body, results, tools }) => {
    if (results.length > 0) return { text: `It prints ${results[0]}.` };
    const name = tools('run_code');
    const { parameters } = body.tools.find((tool) => tool.function.name === name).function;
    return { calls: [{ name, arguments: { [Object.keys(parameters.properties)[0]]: 'print(6 * 7)' } }] };
  }),

  // Asks the tool echo of a server.
  echo: speaks(({ body, results, tools }) => {
    if (results.length > 0) return { text: `The tool said: ${results.join(', ')}` };
    const name = tools('echo');
    const { properties } = body.tools.find((tool) => tool.function.name === name).function.parameters;
    return { text: 'I ask. ', calls: [{ name, arguments: { [properties.message ? 'message' : 'text']: 'ping' } }] };
  }),

  // Two calls at once, then a third.
  rounds: speaks(({ results, tools }) => {
    if (results.length >= 3) return { text: results.join(' ') };
    if (results.length === 2) return { calls: [{ name: tools('echo'), arguments: { text: 'three' } }] };
    return { calls: ['one', 'two'].map((text) => ({ name: tools('echo'), arguments: { text } })) };
  }),

  // Writes a line into a file, whose name is the question.
  ledger: speaks(({ body, results, tools }) => {
    if (results.length > 0) return { text: `The tool said: ${results[0]}` };
    const question = body.messages.findLast(({ role }) => role === 'user').content;
    const file = typeof question === 'string' ? question : question[0].text;
    return { calls: [{ name: tools('ledger'), arguments: { file, mode: 'answer', note: 'x' } }] };
  }),

  // Does what the question says, a JSON array: the calls of each round, as arrays of tool and arguments. Then it is done.
  script: speaks(({ body, tools }) => {
    const from = body.messages.findLastIndex(({ role, content }) => role === 'user' && typeof content === 'string');
    const round = body.messages.slice(from).filter(({ tool_calls }) => tool_calls).length;
    const calls = JSON.parse(body.messages[from].content)[round];
    return calls ? { calls: calls.map(([tool, args]) => ({ name: tools(tool), arguments: args })) } : { text: 'Done.' };
  }),

  // Calls a tool that takes a while.
  slow: speaks(({ results, tools }) => (results.length > 0 ? { text: 'That took a while.' } : { calls: [{ name: tools('slow'), arguments: { ms: 400 } }] })),

  // Calls a tool that takes longer than any test.
  endless: speaks(({ tools }) => ({ calls: [{ name: tools('slow'), arguments: { ms: 600_000 } }] })),

  // A long text, slowly.
  slowly: speaks(() => ({ text: 'All work and no play. '.repeat(8), pause: 20 })),

  // What the conversation was.
  history: speaks(({ body }) => ({ text: JSON.stringify(body.messages.filter(({ role }) => role !== 'system').map(({ role, content, tool_calls }) => [role, tool_calls ? tool_calls.length : typeof content === 'string' ? content : (content ?? []).map(({ text }) => text).join('')])) })),

  // Refuses on the first, or the second round.
  unauthorized: speaks(() => ({ status: 401, error: 'no such key' })),
  later: speaks(({ results, tools }) => (results.length > 0 ? { status: 401, error: 'no such key' } : { calls: [{ name: tools('echo'), arguments: { text: 'x' } }] })),
  broken: speaks(() => ({ text: 'This breaks', cut: true })),
};
