// Tasks for models, with real browsers: the model is scripted, all else is real.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { test } from 'node:test';

import { browser, skip } from './browser.mjs';
import { connect } from './clients.mjs';
import { Child, patience, startDaemon, until } from './launch.mjs';

/** A site whose page at /NAME has that name in its title. It holds each page back until so many have been asked for. */
async function site(t, together = 1) {
  const asked = [];
  const server = createServer((request, response) => {
    if (request.url === '/favicon.ico') return response.writeHead(404).end();
    asked.push(() => {
      response.writeHead(200, { 'content-type': 'text/html' });
      response.end(`<title>This is ${request.url.slice(1)}</title><p>cookies: ${request.headers.cookie ?? 'none'}</p>`);
    });
    if (asked.length >= together) for (const answer of asked.splice(0)) answer();
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => server.close());
  return `http://127.0.0.1:${server.address().port}`;
}

/** A model that opens the URL in its task, and then says the title that the browser tells it. */
async function model(t) {
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    const { messages, tools } = JSON.parse(body);
    const [url] = messages.findLast(({ role }) => role === 'user').content.match(/http:\S+/);
    const output = messages.findLast(({ role }) => role === 'tool');
    const delta = { role: 'assistant', content: output ? `The title is: ${/Page Title: (.*)/.exec(output.content)?.[1]}` : 'I open the page.' };
    if (!output) {
      const { name } = tools.find((tool) => tool.function.name.endsWith('browser_navigate')).function;
      delta.tool_calls = [{ index: 0, id: 'call_1', type: 'function', function: { name, arguments: JSON.stringify({ url }) } }];
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const choice of [{ index: 0, delta }, { index: 0, delta: {}, finish_reason: output ? 'stop' : 'tool_calls' }]) {
      response.write(`data: ${JSON.stringify({ id: 'x', object: 'chat.completion.chunk', model: 'scripted', choices: [choice] })}\n\n`);
    }
    response.end('data: [DONE]\n\n');
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => server.close());
  return `http://127.0.0.1:${server.address().port}`;
}

async function start(t) {
  return startDaemon(t, {
    servers: () => ({ browser: browser({ max: 3, snapshot: { tool: 'browser_take_screenshot' } }) }),
    settings: { llm: { upstreams: { scripted: { baseURL: await model(t) } }, tasks: { model: 'scripted' } } },
  });
}

async function nothingIsLeft(daemon) {
  await until('no process of a browser is left', patience, () => daemon.serverProcesses().length === 0);
}

// A2: unattended, from a shell.
test('a model opens a page and says its title', { skip, timeout: 300_000 }, async (t) => {
  const [url, daemon] = [await site(t), await start(t)];
  const child = new Child(daemon.executable, ['run', `open ${url}/home and say its title`, '--server', 'browser', '--model', 'scripted', '--json', '--url', daemon.url], { env: process.env });
  t.after(() => child.killAll());
  const { code } = await child.ended;
  assert.equal(code, 0, child.output);
  const result = JSON.parse(child.output.split('\n').find((line) => line.startsWith('{')));
  assert.equal(result.content[0].text, 'I open the page.\nThe title is: This is home');
  const picture = result.content.find(({ type }) => type === 'image');
  assert.ok(picture?.data.length > 1000, 'the last picture is part of the result');
  for (const step of [/^roundhouse: I open the page\.$/m, /^roundhouse: > browser browser_navigate \{"url":"http/m, /^roundhouse: < browser browser_navigate: /m, /^roundhouse: The title is: This is home$/m]) {
    assert.match(child.output, step, 'each step is shown while it works');
  }
  await nothingIsLeft(daemon);
});

// A3: the site answers only when both have asked, so they run at the same time.
test('two tasks run at the same time in browsers of their own', { skip, timeout: 300_000 }, async (t) => {
  const [url, daemon] = [await site(t, 2), await start(t)];
  const session = await connect(daemon.mcp('roundhouse'));
  const progress = [];
  const { content, structuredContent, isError } = await session.call(
    'run_tasks',
    { tasks: [`open ${url}/one and say its title`, `open ${url}/two and say its title`], concurrent: true, isolate: true },
    { timeout: 150_000, onprogress: (step) => progress.push(step) },
  );
  assert.ok(!isError);
  assert.deepEqual(
    structuredContent.results.map(({ text, status }) => [text, status]),
    ['one', 'two'].map((name) => [`I open the page.\nThe title is: This is ${name}`, 'completed']),
  );
  assert.equal(content.filter(({ type }) => type === 'image').length, 2, 'each shows its own browser');
  assert.ok(progress.length >= 8 && progress.every((step, i) => i === 0 || step.progress > progress[i - 1].progress), JSON.stringify(progress));
  assert.equal(progress.at(-1).progress, 2);
  await session.leave();
  await nothingIsLeft(daemon);
});
