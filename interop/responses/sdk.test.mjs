// The official SDKs of both languages, in front of scripted models and real MCP servers. Whatever streams is checked as it came over the wire, too.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

import { patience, until } from '../js/launch.mjs';
import { startClients } from './clients.mjs';
import { checkEvents, checkResponse } from './events.mjs';
import { startWorld } from './world.mjs';

const kinds = ({ output }) => output.map(({ type }) => type);
const text = ({ output }) => output.filter(({ type }) => type === 'message').flatMap(({ content }) => content.map((part) => part.text)).join('');
const one = (response, type) => response.output.find((item) => item.type === type);
const lines = (file) => (existsSync(file) ? readFileSync(file, 'utf8').split('\n').length - 1 : 0);
/** The items without what an SDK has added to them. */
const sent = (output) => JSON.parse(JSON.stringify(output, (name, value) => (/^parsed/.test(name) ? undefined : value)));
const weather = { type: 'function', name: 'get_weather', description: 'The weather.', parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false }, strict: false };
const mcp = (server_label, more) => ({ type: 'mcp', server_label, require_approval: 'never', ...more });

/** What was said in the conversation that the model "history" tells of. Each call in it must have its result, and the other way round. */
function spoken(told) {
  const messages = JSON.parse(told);
  let open = 0;
  for (const [role, content] of messages) {
    if (role === 'tool') assert.ok(open-- > 0, `a result without a call: ${told}`);
    else assert.equal(open, 0, `a call without a result: ${told}`);
    if (typeof content === 'number') open = content;
  }
  assert.equal(open, 0);
  return messages.filter(([, content]) => typeof content !== 'number');
}

test('official SDKs', async (t) => {
  const world = await startWorld(t);
  for (const [language, client] of Object.entries(startClients(t))) {
    await t.test(language, async (t) => scenarios(t, world, client, language));
  }
});

async function scenarios(t, world, client, language) {
  const ask = (how, order) => client.ask({ base: world.base, how, ...order });
  /** The response of a request that has none but good answers. */
  const good = async (how, order) => {
    const { response, error } = await ask(how, order);
    assert.equal(error, undefined);
    checkResponse(response);
    return response;
  };
  const refused = async (status, how, order, pattern = /./) => {
    const { error } = await ask(how, order);
    assert.equal(error?.status, status, JSON.stringify(error));
    assert.match(error.message, pattern);
  };
  const step = (name, run) =>
    t.test(name, async (t) => {
      await run(t);
      checked += world.checkStreams();
    });
  let checked = 0;
  const tool = mcp('bad', { allowed_tools: ['echo', 'slow', 'ledger'] });

  // X1, X2
  await step('text', async () => {
    for (const how of ['create', 'stream']) {
      const response = await good(how, { params: { model: 'text', input: 'Hi', instructions: 'Be brief.', metadata: { a: 'b' } } });
      assert.deepEqual([response.status, text(response), response.usage.total_tokens, response.metadata.a], ['completed', 'Hello, world.', 5, 'b']);
    }
  });

  // X1, B.5.9
  await step('functions', async () => {
    for (const how of ['create', 'stream']) {
      const first = await good(how, { params: { model: 'function', input: 'How is the weather?', tools: [weather] } });
      assert.deepEqual(kinds(first), ['function_call']);
      const { call_id, name, arguments: args } = first.output[0];
      assert.deepEqual([name, JSON.parse(args)], ['get_weather', { city: 'Paris' }]);
      const answer = { type: 'function_call_output', call_id, output: 'sunny' };
      const second = await good(how, { params: { model: 'function', previous_response_id: first.id, input: [answer], tools: [weather] } });
      assert.equal(text(second), 'It is sunny.');
      const replayed = await good(how, { params: { model: 'function', store: false, input: [{ role: 'user', content: 'How is the weather?' }, ...first.output, answer], tools: [weather] } });
      assert.equal(text(replayed), 'It is sunny.');
    }
  });

  // X1
  await step('custom tools', async () => {
    const tools = [{ type: 'custom', name: 'run_code', description: 'Runs it.' }];
    for (const how of ['create', 'stream']) {
      const first = await good(how, { params: { model: 'custom', input: 'What is six times seven?', tools } });
      const { type, call_id, name, input } = first.output[0];
      assert.deepEqual([type, name, input], ['custom_tool_call', 'run_code', 'print(6 * 7)']);
      const second = await good(how, { params: { model: 'custom', previous_response_id: first.id, input: [{ type: 'custom_tool_call_output', call_id, output: '42' }], tools } });
      assert.equal(text(second), 'It prints 42.');
    }
  });

  // X2, X6: a session that is named by its URL
  await step('a named session', async () => {
    const order = { base: `${world.base}/sessions/${language}` };
    const first = await good('create', { ...order, params: { model: 'echo', input: 'Ask the tool.', tools: [tool] } });
    const second = await good('create', { ...order, params: { model: 'history', previous_response_id: first.id, input: 'What was that?' } });
    assert.equal(spoken(text(second)).filter(([role]) => role === 'tool').length, 1);
    assert.equal((await good('retrieve', { ...order, id: first.id })).id, first.id);
  });

  // X1, X5, case 57
  for (const [where, server] of [['by label', mcp('everything', { allowed_tools: ['echo'] })], ['by URL', mcp('elsewhere', { server_url: world.url.href, allowed_tools: { tool_names: ['echo'] }, headers: { 'X-Key': 'sentinel' }, authorization: 'sentinel' })]]) {
    await step(`MCP tools ${where}`, async () => {
      for (const how of ['create', 'stream']) {
        const response = await good(how, { params: { model: 'echo', input: 'Ask the tool.', tools: [server] } });
        const list = one(response, 'mcp_list_tools');
        const call = one(response, 'mcp_call');
        assert.equal(list.server_label, server.server_label);
        assert.ok(list.tools.some(({ name }) => name === 'echo'));
        assert.deepEqual([call.server_label, call.name, JSON.parse(call.arguments)], [server.server_label, 'echo', { message: 'ping' }]);
        assert.match(call.output, /ping/);
        assert.match(text(response), /The tool said: .*ping/);
        assert.ok(!JSON.stringify(response).includes('sentinel'), 'the response shows a secret');
        const stored = await good('retrieve', { id: response.id });
        assert.deepEqual(sent(stored.output), sent(response.output));
        assert.ok(!JSON.stringify(stored).includes('sentinel'), 'the stored response shows a secret');
      }
    });
  }

  // X5, B.5.2, B.5.4, case 57
  await step('several calls over several rounds are one response', async () => {
    for (const how of ['create', 'stream']) {
      const response = await good(how, { params: { model: 'rounds', input: 'Go.', tools: [tool] } });
      assert.deepEqual(kinds(response), ['mcp_list_tools', 'mcp_call', 'mcp_call', 'mcp_call', 'message']);
      assert.equal(text(response), 'one two three');
    }
  });

  // B.5.8, case 60
  await step('approvals', async () => {
    const { require_approval: _, ...asking } = tool;
    for (const [i, how] of ['create', 'stream'].entries()) {
      const file = world.file(`${language}-${i}`);
      const first = await good(how, { params: { model: 'ledger', input: file, tools: [asking] } });
      const request = one(first, 'mcp_approval_request');
      assert.deepEqual([first.status, request.server_label, request.name, lines(file)], ['completed', 'bad', 'ledger', 0]);
      const approval = { type: 'mcp_approval_response', approval_request_id: request.id, approve: true };
      const second = await good(how, { params: { model: 'ledger', previous_response_id: first.id, input: [approval], tools: [asking] } });
      const call = one(second, 'mcp_call');
      assert.deepEqual([call.status, call.approval_request_id, lines(file)], ['completed', request.id, 1]);
      assert.ok(!kinds(second).includes('mcp_list_tools'), 'a list that is in the context is made again');
      assert.match(text(second), /The tool said/);
      await refused(400, 'create', { params: { model: 'ledger', previous_response_id: first.id, input: [approval], tools: [asking] } });
      await refused(400, 'create', { params: { model: 'ledger', previous_response_id: second.id, input: [approval], tools: [asking] } });
      await refused(400, 'create', { params: { model: 'ledger', previous_response_id: first.id, input: [{ ...approval, approval_request_id: 'mcpr_other' }], tools: [asking] } });
      assert.equal(lines(file), 1);

      const third = await good(how, { params: { model: 'ledger', input: file, tools: [asking] } });
      const denial = { type: 'mcp_approval_response', approval_request_id: one(third, 'mcp_approval_request').id, approve: false, reason: 'not today' };
      const fourth = await good(how, { params: { model: 'ledger', previous_response_id: third.id, input: [denial], tools: [asking] } });
      assert.match(text(fourth), /not today/);
      assert.equal(lines(file), 1);
      assert.ok(!kinds(fourth).includes('mcp_call') || one(fourth, 'mcp_call').status !== 'completed');

      const fifth = await good(how, { params: { model: 'ledger', store: false, input: [{ role: 'user', content: file }], tools: [asking] } });
      const replay = { type: 'mcp_approval_response', approval_request_id: one(fifth, 'mcp_approval_request').id, approve: true };
      const sixth = await good(how, { params: { model: 'ledger', store: false, input: [{ role: 'user', content: file }, ...fifth.output, replay], tools: [asking] } });
      assert.deepEqual([one(sixth, 'mcp_call').status, lines(file)], ['completed', 2]);
    }
  });

  // X6, B.6
  await step('background, and a stream that goes on after its connection broke', async () => {
    const params = { model: 'slow', input: 'Go.', tools: [tool], background: true };
    const begun = await good('create', { params });
    assert.match(begun.status, /queued|in_progress/);
    await until('the response is complete', patience, async () => (await good('retrieve', { id: begun.id })).status === 'completed');
    const whole = await ask('resume', { id: begun.id });
    checkEvents(whole.events);
    assert.equal(whole.events.at(-1).type, 'response.completed');

    world.proxy.cut(6);
    const first = await ask('events', { params });
    assert.ok(first.broken, 'the client does not see that the connection broke');
    const seen = first.events.at(-1).sequence_number;
    const rest = await ask('resume', { id: first.events[0].response.id, query: { starting_after: seen } });
    assert.equal(rest.broken, undefined);
    checkEvents([...first.events, ...rest.events]);
    assert.equal(rest.events.at(-1).type, 'response.completed');
    const again = await ask('resume', { id: first.events[0].response.id });
    assert.deepEqual(again.events, [...first.events, ...rest.events]);
    const helped = await ask('stream', { params: { response_id: first.events[0].response.id, starting_after: seen } });
    assert.deepEqual(helped.types, rest.events.map(({ type }) => type));
    assert.deepEqual(sent(helped.response.output), sent(rest.events.at(-1).response.output));
  });

  // X6, B.5.9, case 58
  await step('previous_response_id behind calls of tools', async () => {
    const first = await good('create', { params: { model: 'rounds', input: 'Go.', tools: [tool] } });
    const second = await good('create', { params: { model: 'history', previous_response_id: first.id, input: 'What was that?', tools: [tool] } });
    const told = spoken(text(second));
    assert.deepEqual(told, [['user', 'Go.'], ['tool', 'one'], ['tool', 'two'], ['tool', 'three'], ['assistant', 'one two three'], ['user', 'What was that?']]);
    assert.ok(!kinds(second).includes('mcp_list_tools'), 'a list that is in the context is made again');
    const replayed = await good('create', { params: { model: 'history', store: false, input: [{ role: 'user', content: 'Go.' }, ...first.output, { role: 'user', content: 'What was that?' }], tools: [tool] } });
    assert.deepEqual(spoken(text(replayed)), told);
    const third = await good('stream', { params: { model: 'history', previous_response_id: second.id, input: 'And now?' } });
    assert.equal(spoken(text(third)).length, told.length + 2);
    const { items } = await ask('items', { id: third.id, query: { order: 'asc', limit: 3 } });
    assert.equal(items[0].content[0].text, 'Go.');
    assert.equal(items.at(-1).content[0].text, 'And now?');

    await refused(404, 'create', { params: { model: 'text', previous_response_id: 'resp_unknown', input: 'x' } });
    const apart = await good('create', { params: { model: 'text', input: 'x', store: false } });
    await refused(404, 'create', { params: { model: 'text', previous_response_id: apart.id, input: 'x' } });
    await refused(404, 'retrieve', { id: apart.id });
  });

  // X6, B.6
  await step('cancel', async () => {
    const params = { model: 'endless', input: 'Go.', tools: [tool], background: true };
    const begun = await good('create', { params });
    await refused(400, 'create', { params: { model: 'text', previous_response_id: begun.id, input: 'x' } });
    const reader = ask('resume', { id: begun.id });
    await until('the call is made', patience, async () => (await world.daemon.connections()).some(({ server }) => server === 'bad'));
    const cancelled = await good('cancel', { id: begun.id });
    assert.equal(cancelled.status, 'cancelled');
    const { events } = await reader;
    checkEvents(events);
    assert.equal(events.at(-1).response.status, 'cancelled');
    assert.equal((await good('cancel', { id: begun.id })).status, 'cancelled');
    assert.equal((await good('retrieve', { id: begun.id })).status, 'cancelled');
    const foreground = await good('create', { params: { model: 'text', input: 'x' } });
    await refused(400, 'cancel', { id: foreground.id });
    await refused(404, 'cancel', { id: 'resp_unknown' });
    await refused(400, 'create', { params: { model: 'text', input: 'x', background: true, store: false } }, /store/);
  });

  // X6
  await step('delete', async () => {
    const response = await good('create', { params: { model: 'text', input: 'x' } });
    assert.deepEqual(await ask('delete', { id: response.id }), {});
    await refused(404, 'retrieve', { id: response.id });
    await refused(404, 'delete', { id: response.id });
    await refused(404, 'items', { id: response.id });
  });

  // B.5.3, B.5.5, B.5.7, X9
  await step('calls that go wrong, and odd results', async () => {
    const run = async (rounds, more, server = mcp('bad')) => {
      const { events } = await ask('events', { params: { model: 'script', input: JSON.stringify(rounds), tools: [server], ...more } });
      const { response } = events.at(-1);
      return { ...response, calls: response.output.filter(({ type }) => type === 'mcp_call') };
    };
    const invalid = await run([[['echo', '{"text": ']]]);
    assert.deepEqual([invalid.status, invalid.calls[0].status, invalid.calls[0].error.type], ['completed', 'failed', 'mcp_protocol_error']);
    const failing = await run([[['ledger', { file: world.file(`${language}-failing`), mode: 'error' }]]]);
    assert.deepEqual([failing.status, failing.calls[0].error.type], ['completed', 'mcp_tool_execution_error']);
    const again = [['ledger', { file: world.file(`${language}-again`), mode: 'error' }]];
    const stubborn = await run([again, again, again, again, again]);
    assert.deepEqual([stubborn.status, stubborn.calls.length, lines(world.file(`${language}-again`))], ['incomplete', 3, 3]);
    const unknown = await run([[['no_such_tool', {}]]]);
    assert.equal(unknown.status, 'completed');
    assert.ok(unknown.calls.every(({ status }) => status === 'failed'));
    const capped = await run([[['echo', { text: 'one' }], ['echo', { text: 'two' }]], [['echo', { text: 'three' }]]], { max_tool_calls: 1 });
    assert.deepEqual(capped.calls.map(({ status }) => status).slice(0, 2), ['completed', 'incomplete']);
    assert.equal(capped.calls.filter(({ output }) => output).length, 1);
    const structured = await run([[['structured', {}]]]);
    assert.match(structured.calls[0].output, /9007199254740993/);
    const picture = await run([[['get-tiny-image', {}]]], {}, mcp('everything'));
    assert.equal(picture.calls[0].status, 'completed');
    const big = await run([[['big', { bytes: 5 << 20 }]]]);
    assert.ok(big.calls[0].status === 'completed' && big.calls[0].output.length < 2 << 20, `${big.calls[0].output?.length} characters`);
    const none = await run([], {}, mcp('bad', { allowed_tools: ['no_such_tool'] }));
    assert.equal(none.status, 'completed');
  });

  // case 59
  await step('failures are seen', async () => {
    await refused(401, 'create', { params: { model: 'unauthorized', input: 'x' } });
    const later = await ask('events', { params: { model: 'later', input: 'x', tools: [tool] } });
    assert.equal(later.events.at(-1).type, 'response.failed');
    const broken = await ask('events', { params: { model: 'broken', input: 'x' } });
    assert.equal(broken.events.at(-1).type, 'response.failed');
    const unreachable = await good('stream', { params: { model: 'text', input: 'x', tools: [mcp('broken')] } });
    assert.ok(one(unreachable, 'mcp_list_tools').error);
    await refused(400, 'create', { params: { model: 'text', input: 'x', tools: [tool, tool] } }, /bad/);
    await refused(400, 'create', { params: { model: 'text', input: 'x', tools: [{ type: 'web_search_preview' }] } }, /web_search_preview/);
    await refused(400, 'create', { params: { model: 'text', input: 'x', tools: [mcp('inside', { server_url: world.daemon.url })] } });
  });
  assert.ok(checked >= 30, `only ${checked} streams were checked`);
}

async function restart(daemon, signal) {
  daemon.signal(signal);
  await daemon.ended;
  await daemon.start();
}

// X6: case 58 after a restart, and what ran when the daemon was killed.
test('responses outlast the daemon', async (t) => {
  const world = await startWorld(t);
  const tool = mcp('bad', { allowed_tools: ['echo', 'slow', 'ledger'] });
  const { JavaScript: client } = startClients(t);
  const ask = (how, order) => client.ask({ base: world.base, how, ...order });
  const { response: stopped } = await ask('create', { params: { model: 'rounds', input: 'Go.', tools: [tool] } });
  await restart(world.daemon, 'SIGTERM');
  const { response: stored } = await ask('retrieve', { id: stopped.id });
  assert.deepEqual(stored, stopped);
  const { response: next } = await ask('create', { params: { model: 'history', previous_response_id: stopped.id, input: 'What was that?', tools: [tool] } });
  assert.equal(spoken(text(next)).length, 6);

  const file = world.file('approved');
  const { response: asked } = await ask('create', { params: { model: 'ledger', input: file, tools: [mcp('bad', { require_approval: 'always' })] } });
  const approve = { params: { model: 'ledger', previous_response_id: asked.id, input: [{ type: 'mcp_approval_response', approval_request_id: one(asked, 'mcp_approval_request').id, approve: true }], tools: [mcp('bad', { require_approval: 'always' })] } };
  const { response: approved } = await ask('create', approve);
  assert.equal(one(approved, 'mcp_call').status, 'completed');

  const { response: stopping } = await ask('create', { params: { model: 'endless', input: 'Go.', tools: [tool], background: true } });
  const reader = ask('resume', { id: stopping.id });
  await until('it runs', patience, async () => (await ask('retrieve', { id: stopping.id })).response.status === 'in_progress');
  await restart(world.daemon, 'SIGTERM');
  const seen = (await reader).events;
  checkEvents(seen);
  assert.equal(seen.at(-1).type, 'response.failed');
  assert.deepEqual((await ask('resume', { id: stopping.id })).events, seen);

  const { response: running } = await ask('create', { params: { model: 'endless', input: 'Go.', tools: [tool], background: true } });
  await until('it runs', patience, async () => (await ask('retrieve', { id: running.id })).response.status === 'in_progress');
  await restart(world.daemon, 'SIGKILL');
  const { response: failed } = await ask('retrieve', { id: running.id });
  assert.deepEqual([failed.status, failed.error.code], ['failed', 'server_error']);
  const { events } = await ask('resume', { id: running.id });
  checkEvents(events);
  assert.equal(events.at(-1).type, 'response.failed');
  assert.equal((await ask('create', approve)).error.status, 400);
  assert.equal(lines(file), 1);
  assert.equal((await ask('create', { params: { model: 'text', previous_response_id: running.id, input: 'x' } })).error.status, 400);

  const waiting = ask('events', { params: { model: 'endless', input: 'Go.', tools: [tool] } });
  await until('it streams', 30_000, () => world.proxy.streams.at(-1)?.text.includes('mcp_call_arguments.done'));
  await restart(world.daemon, 'SIGKILL');
  const cut = await waiting;
  assert.ok(cut.broken, 'the client does not see that the daemon died');
  const { response: lost } = await ask('retrieve', { id: cut.events[0].response.id });
  assert.deepEqual([lost.status, lost.error.code, lost.background], ['failed', 'server_error', false]);
  world.checkStreams();
});

// X1, B.1: the documentation tells what becomes of each field that the SDK can send.
test('every field of the SDK is documented', () => {
  const types = readFileSync(new URL('node_modules/openai/resources/responses/responses.d.ts', import.meta.url), 'utf8');
  const [, fields] = /export interface ResponseCreateParamsBase \{\n(.*?)\n\}/s.exec(types);
  const names = [...fields.matchAll(/^ {4}(\w+)\??:/gm)].map(([, name]) => name);
  assert.ok(names.length > 30, `only ${names.length} fields were found`);
  const guide = readFileSync(new URL('../../docs/responses.md', import.meta.url), 'utf8');
  const [, table] = /\n## Fields\n(.*?)\n## /s.exec(guide);
  assert.deepEqual(names.filter((name) => !table.includes(`\`${name}\``)), []);
});
