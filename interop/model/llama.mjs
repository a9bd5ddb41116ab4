// llama.cpp's server with a small model: a real one where the machine offers it, or else what one has said, byte for byte.
//
//   ROUNDHOUSE_LLAMA=…/llama-server ROUNDHOUSE_MODEL=…/gemma3-270m.gguf   runs that one
//   ROUNDHOUSE_REPLAY=write besides                                       and keeps what it says in replay/llama.json

import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';

import { Child, freePort, patience, until } from '../js/launch.mjs';

const replay = join(import.meta.dirname, 'replay', 'llama.json');
const template = join(import.meta.dirname, 'replay', 'template.jinja');
const { ROUNDHOUSE_LLAMA: program, ROUNDHOUSE_MODEL: model, ROUNDHOUSE_REPLAY: mode } = process.env;

/** Which of the two there is. */
export const kind = program ? 'the engine itself' : 'what the engine has said';

/** Starts it, and returns its URL. */
export async function startLlama(t) {
  if (!program) return startReplay(t);
  const port = await freePort();
  const child = new Child(program, ['-m', model, '--alias', 'gemma', '--host', '127.0.0.1', '--port', port, '-c', '2048', '-t', '2', '--chat-template-file', template].map(String));
  t.after(() => child.killAll());
  const url = `http://127.0.0.1:${port}`;
  await until('the engine has its model', patience, async () => (await fetch(`${url}/health`).catch(() => undefined))?.ok);
  return mode === 'write' ? startWriter(t, url) : url;
}

async function listen(t, answer) {
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request.setEncoding('utf8')) body += chunk;
    await answer({ path: request.url, body, response });
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

const kept = []; // of all tests

/** Stands before the engine, and keeps what passes. */
function startWriter(t, url) {
  t.after(() => writeFileSync(replay, `[\n${kept.map((one) => JSON.stringify(one)).join(',\n')}\n]\n`));
  return listen(t, async ({ path, body, response }) => {
    const answer = await fetch(url + path, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
    const type = answer.headers.get('content-type');
    const text = await answer.text();
    kept.push({ path, body, status: answer.status, type, text });
    response.writeHead(answer.status, { 'content-type': type }).end(text);
  });
}

/** Answers what was asked then, as it was answered then; streams in pieces, which do not end where events do. */
function startReplay(t) {
  const all = JSON.parse(readFileSync(replay, 'utf8'));
  return listen(t, async ({ path, body, response }) => {
    const one = all.find((said) => said.path === path && said.body === body);
    if (!one) {
      response.writeHead(501, { 'content-type': 'application/json' }).end(JSON.stringify({ error: { message: `this was never asked: ${path} ${body}` } }));
      return;
    }
    response.writeHead(one.status, { 'content-type': one.type });
    for (const piece of one.type.startsWith('text/event-stream') ? one.text.match(/[^]{1,700}/g) : [one.text]) {
      await new Promise((done) => response.write(piece, done));
    }
    response.end();
  });
}
