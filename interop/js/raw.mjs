// A client without an SDK: HTTP requests whose bytes the test chooses.

import assert from 'node:assert/strict';

import { patience } from './launch.mjs';

/** Reads the events of an event stream as {id, event, data} with data as text; comments and empty events are dropped. */
export async function* events(body) {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const chunk of body) {
    rest += decoder.decode(chunk, { stream: true });
    for (;;) {
      const end = rest.search(/\r?\n\r?\n/);
      if (end < 0) break;
      const block = rest.slice(0, end);
      rest = rest.slice(end).replace(/^\r?\n\r?\n/, '');
      const event = { data: [] };
      for (const line of block.split(/\r?\n/)) {
        const [, field, value] = /^([^:]*)(?:: ?(.*))?$/.exec(line);
        if (field === 'data') event.data.push(value ?? '');
        else if (field) event[field] = value ?? '';
      }
      event.data = event.data.join('\n');
      if (event.data || event.id) yield event;
    }
  }
}

/** One MCP client of a given protocol version. It sends what it is told and returns what came. */
export class RawClient {
  constructor(url, version) {
    this.url = url;
    this.version = version;
    this.headers = {};
  }

  async #fetch(method, headers, body) {
    return fetch(this.url, { method, headers: { ...this.headers, ...headers }, body, signal: AbortSignal.timeout(patience) });
  }

  /** POSTs a message, a batch or raw text. Returns {status, headers, messages}: every message of the answer, in order. */
  async post(message, headers = {}) {
    const response = await this.open(message, headers);
    const type = response.headers.get('content-type') ?? '';
    const messages = [];
    if (type.startsWith('text/event-stream')) {
      for await (const { data } of events(response.body)) if (data) messages.push(...[JSON.parse(data)].flat());
    } else {
      const text = await response.text();
      if (text && type.startsWith('application/json')) messages.push(...[JSON.parse(text)].flat());
      else this.lastText = text;
    }
    return { status: response.status, type, headers: response.headers, messages };
  }

  /** POSTs and returns the response with its body unread. */
  open(message, headers = {}) {
    const body = typeof message === 'string' ? message : JSON.stringify(message);
    return this.#fetch('POST', { 'content-type': 'application/json', accept: 'application/json, text/event-stream', ...headers }, body);
  }

  get(headers = {}) {
    return this.#fetch('GET', { accept: 'text/event-stream', ...headers });
  }

  delete(headers = {}) {
    return this.#fetch('DELETE', headers);
  }

  /** The whole handshake. From 2025-06-18 on, every later request carries the protocol version. */
  async initialize(capabilities = {}) {
    const { status, headers, messages } = await this.post({
      jsonrpc: '2.0',
      id: 'init',
      method: 'initialize',
      params: { protocolVersion: this.version, capabilities, clientInfo: { name: 'raw', version: '1' } },
    });
    assert.equal(status, 200);
    assert.equal(messages.length, 1);
    assert.equal(messages[0].id, 'init');
    const session = headers.get('mcp-session-id');
    assert.match(session, /^[\x21-\x7e]+$/, 'a session id of visible ASCII');
    this.headers['mcp-session-id'] = session;
    if (this.version >= '2025-06-18') this.headers['mcp-protocol-version'] = this.version;
    const accepted = await this.post({ jsonrpc: '2.0', method: 'notifications/initialized' });
    assert.equal(accepted.status, 202);
    return messages[0].result;
  }
}
