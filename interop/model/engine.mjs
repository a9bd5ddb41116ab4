// A scripted engine: an HTTP server on loopback that answers each request as the model that it names is scripted to.

import { createServer } from 'node:http';

/** Stands in a stream for the point where the engine drops the connection. */
export const cut = Symbol('cut');

/**
 * Starts an engine with scripts, an object of functions by the name of the model: script({response, body, headers, path, left, count}), where
 * response is a ServerResponse, left resolves when the other side has gone before the end, and count says how often the model was asked,
 * this time included. Returns {url, requests}; requests has {path, headers, body} of each in turn, body parsed.
 */
export async function startEngine(t, scripts) {
  const requests = [];
  const server = createServer(async (request, response) => {
    let text = '';
    for await (const chunk of request.setEncoding('utf8')) text += chunk;
    const body = text ? JSON.parse(text) : undefined;
    const { headers, url: path } = request;
    requests.push({ path, headers, body });
    const script = scripts[body?.model];
    if (!script) {
      response.writeHead(404, { 'content-type': 'application/json' }).end('{"error":{"message":"not part of the script"}}');
      return;
    }
    const left = new Promise((done) => response.on('close', () => !response.writableFinished && done()));
    await script({ response, body, headers, path, left, count: requests.filter((one) => one.body?.model === body.model).length });
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, requests };
}

/** A script that answers with JSON, or with a text as it is. */
export function says(body, { status = 200, headers = {} } = {}) {
  return ({ response }) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(typeof body === 'string' ? body : JSON.stringify(body));
  };
}

/** A script that streams: texts are written as they are, of functions it awaits what they return, and it may drop the connection. */
export function streams(...pieces) {
  return async (call) => {
    call.response.writeHead(200, { 'content-type': 'text/event-stream' });
    call.response.flushHeaders();
    for (const piece of pieces) {
      if (piece === cut) {
        // What was written is on its way before the connection breaks.
        await new Promise((done) => call.response.write('', done));
        call.response.socket.resetAndDestroy();
        return;
      }
      if (typeof piece === 'function') await piece(call);
      else call.response.write(piece);
    }
    call.response.end();
  };
}
