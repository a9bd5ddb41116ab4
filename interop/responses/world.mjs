// Everything that a test of the Responses API needs: models by script, real MCP servers, the daemon in between, and in front of it a proxy that
// checks every stream as it came over the wire.

import { spawnSync } from 'node:child_process';
import { createServer, request as connect } from 'node:http';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

import { root, startDaemon, startEverything } from '../js/launch.mjs';
import { startEngine } from '../model/engine.mjs';
import { models } from './engine.mjs';
import { check } from './events.mjs';

/**
 * Starts a proxy in front of the daemon. Each event stream that went through it is kept in streams as {path, text, whole}, with whole false if the client left
 * or the connection was cut; cut(n) drops the connection of the next one behind its event with the number n.
 */
async function startProxy(t, target) {
  const proxy = { streams: [], cut: (n) => { proxy.cutAt = n; } }; // prettier-ignore
  const server = createServer((request, response) => {
    const upstream = connect(new URL(request.url, target), { method: request.method, headers: request.headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      response.flushHeaders();
      if (!/^text\/event-stream/.test(answer.headers['content-type'] ?? '')) return void answer.pipe(response);
      const seen = { path: request.url, text: '', whole: false };
      proxy.streams.push(seen);
      const cutAt = proxy.cutAt;
      proxy.cutAt = undefined;
      answer.setEncoding('utf8');
      answer.on('data', (text) => {
        seen.text += text;
        response.write(text);
        if (cutAt !== undefined && seen.text.split('\n\n').length > cutAt + 1) {
          upstream.destroy();
          setTimeout(() => response.socket?.resetAndDestroy(), 50); // what was written arrives
        }
      });
      answer.on('end', () => {
        seen.whole = true;
        response.end();
      });
      answer.on('error', () => response.destroy());
    });
    upstream.on('error', () => response.destroy());
    response.on('close', () => upstream.destroy());
    request.pipe(upstream);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  proxy.url = `http://127.0.0.1:${server.address().port}`;
  return proxy;
}

/** Builds the misbehaving server, which is a Go program of ours. */
function buildBadserver(directory) {
  const file = join(directory, 'badserver');
  const built = spawnSync('go', ['build', '-o', file, './internal/badserver/cmd'], { cwd: resolve(root, '..'), encoding: 'utf8' });
  if (built.status !== 0) throw new Error(`the misbehaving server cannot be built: ${built.stderr ?? built.error}`);
  return file;
}

/**
 * Starts it all. The servers are "everything", "bad" and "broken", which does not start; url is that of another everything
 * server, which only a server_url reaches. checkStreams() checks each stream that was read since it was last called, and returns how many.
 */
export async function startWorld(t) {
  const directory = mkdtempSync(join(tmpdir(), 'roundhouse-responses-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const badserver = buildBadserver(directory);
  const engine = await startEngine(t, models);
  const url = await startEverything(t);
  const daemon = await startDaemon(t, {
    servers: ({ everything }) => ({ everything, bad: { command: badserver }, broken: { command: badserver, args: ['-fail-start'] } }),
    settings: { llm: { upstreams: { scripted: { baseURL: engine.url } }, record: { unnamed: 'observe' }, responses: { egress: { allow: [url.host] } } }, shutdown: { grace: '1s' } },
  });
  const proxy = await startProxy(t, daemon.url);
  return {
    engine, daemon, proxy, url, base: proxy.url,
    file: (name) => join(directory, name),
    checkStreams() {
      const streams = proxy.streams.splice(0);
      for (const { path, text, whole } of streams) {
        const after = Number(new URL(path, proxy.url).searchParams.get('starting_after') ?? -1);
        check(text, { after, whole });
      }
      return streams.length;
    },
  }; // prettier-ignore
}
