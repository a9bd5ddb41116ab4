// Clients of every official SDK and both eras, made alike. A kind of client opens sessions:
//
//   open(session, target)          connects to {url} or starts {command: [program, ...arguments]}; resolves to the protocol version
//                                  spoken; a kind of the new era begins in the older one where the new one is not spoken
//   call(session, tool, arguments, key)  resolves to {text, isError}
//   progress(session, key)         of the latest call with this key, so far: [{progress, total, message}]
//   cancel(session, key)           gives up the call with this key, which then fails
//   subscribe(session, uri)        to updates of a resource, in the way of the session's era
//   tools(session)                 the names of the tools, asked anew
//   heard(session)                 {updated: URIs, changes: how often the tools have changed, errors, late: progress that the SDK did not
//                                  give to its call; see TypeScript.open}
//   close(session)
//
// session is the name of one; a session answers questions with its own name. The TypeScript SDKs run in this
// process, the Go and the Python SDK in programs that are told the same, one JSON object a line.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

import { Client as SecondClient, StreamableHTTPClientTransport as SecondHTTP } from '@modelcontextprotocol/client';
import { StdioClientTransport as SecondStdio } from '@modelcontextprotocol/client/stdio';
import { Client as FirstClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as FirstStdio } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport as FirstHTTP } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema, ResourceUpdatedNotificationSchema, ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js'; // prettier-ignore

const capabilities = { sampling: {}, elicitation: {}, roots: {} };

/** The sessions of a TypeScript SDK. What the two SDKs do differently is in connect, handle and subscribe. */
class TypeScript {
  #sessions = new Map();

  async open(name, { url, command: [command, ...args] = [] }) {
    const heard = { updated: [], changes: 0, errors: [], late: [] };
    const client = this.make(name);
    const progress = new Map();
    client.onerror = (error) => {
      // The SDKs report progress that is on its way while they cancel its call. On stdio they also handle progress after a result
      // that was read together with it. It belongs to the call that began last: the tests make one with progress at a time.
      const late = /progress notification for an unknown token: (.*)/.exec(error.message);
      if (!late) return heard.errors.push(String(error));
      const { params } = JSON.parse(late[1]);
      heard.late.push(params);
      if (command) [...progress.values()].at(-1).push(params);
    };
    this.handle(client, {
      sampling: ({ params }) => ({ model: name, role: 'assistant', content: { type: 'text', text: `${name} heard ${params.messages[0].content.text}` } }),
      elicitation: () => ({ action: 'accept', content: { name } }),
      roots: () => ({ roots: [{ uri: `file:///${name}`, name }] }),
      updated: ({ params }) => void heard.updated.push(params.uri),
      changed: () => void heard.changes++,
    });
    const transport = url ? new this.HTTP(new URL(url)) : new this.Stdio({ command, args });
    await client.connect(transport, { timeout: 60_000 });
    const session = { client, transport, heard, calls: new Map(), progress };
    this.#sessions.set(name, session);
    return this.begin(session);
  }

  async call(name, tool, args, key) {
    const { client, calls, progress } = this.#sessions.get(name);
    const given = new AbortController();
    const seen = [];
    calls.set(key, given);
    progress.delete(key); // to be the last
    progress.set(key, seen);
    const result = await this.callTool(client, { name: tool, arguments: args }, { signal: given.signal, onprogress: (one) => seen.push(one) });
    return { text: result.content.map(({ text }) => text ?? '').join(''), isError: Boolean(result.isError) };
  }

  progress(name, key) {
    return this.#sessions.get(name).progress.get(key);
  }

  cancel(name, key) {
    this.#sessions.get(name).calls.get(key).abort('changed my mind');
  }

  subscribe(name, uri) {
    return this.listen(this.#sessions.get(name), uri);
  }

  async tools(name) {
    return (await this.#sessions.get(name).client.listTools()).tools.map((tool) => tool.name);
  }

  heard(name) {
    return this.#sessions.get(name).heard;
  }

  async close(name) {
    const { client, transport } = this.#sessions.get(name);
    await transport.terminateSession?.();
    await client.close();
  }

  end() {}
}

class First extends TypeScript {
  make = (name) => new FirstClient({ name, version: '1' }, { capabilities });
  HTTP = FirstHTTP;
  Stdio = FirstStdio;
  begin = ({ transport }) => transport.protocolVersion ?? '2025-11-25'; // on stdio it does not say
  callTool = (client, params, options) => client.callTool(params, undefined, options);
  listen = ({ client }, uri) => client.subscribeResource({ uri });

  handle(client, { sampling, elicitation, roots, updated, changed }) {
    client.setRequestHandler(CreateMessageRequestSchema, sampling);
    client.setRequestHandler(ElicitRequestSchema, elicitation);
    client.setRequestHandler(ListRootsRequestSchema, roots);
    client.setNotificationHandler(ResourceUpdatedNotificationSchema, updated);
    client.setNotificationHandler(ToolListChangedNotificationSchema, changed);
  }
}

class Second extends TypeScript {
  constructor(era) {
    super();
    this.era = era;
  }

  make = (name) => new SecondClient({ name, version: '1' }, { capabilities, versionNegotiation: { mode: this.era === 'modern' ? 'auto' : 'legacy' } });
  HTTP = SecondHTTP;
  Stdio = SecondStdio;
  callTool = (client, params, options) => client.callTool(params, options);
  listen = ({ client }, uri) => (client.getProtocolEra() === 'modern' ? client.listen({ resourceSubscriptions: [uri] }) : client.subscribeResource({ uri }));

  handle(client, { sampling, elicitation, roots, updated, changed }) {
    client.setRequestHandler('sampling/createMessage', sampling);
    client.setRequestHandler('elicitation/create', elicitation);
    client.setRequestHandler('roots/list', roots);
    client.setNotificationHandler('notifications/resources/updated', updated);
    client.setNotificationHandler('notifications/tools/list_changed', changed);
  }

  async begin({ client }) {
    if (client.getProtocolEra() === 'modern') await client.listen({ toolsListChanged: true });
    return client.getNegotiatedProtocolVersion();
  }
}

/** The sessions of an SDK of another language. */
class Program {
  #waiting = new Map();
  #count = 0;
  #child;

  constructor(era, command, ...args) {
    this.era = era;
    this.#child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    const fail = (why) => {
      for (const { fail } of this.#waiting.values()) fail(why);
      this.#waiting.clear();
    };
    this.#child.on('error', fail);
    this.#child.on('exit', (code, signal) => fail(new Error(`${command} ended: ${code ?? signal}`)));
    this.#child.stdin.on('error', fail);
    createInterface({ input: this.#child.stdout }).on('line', (line) => {
      const { id, result, error } = JSON.parse(line);
      const { done, fail } = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (error) fail(Object.assign(new Error(error.message), { code: error.code }));
      else done(result);
    });
  }

  #tell(order) {
    return new Promise((done, fail) => {
      const id = ++this.#count;
      this.#waiting.set(id, { done, fail });
      this.#child.stdin.write(`${JSON.stringify({ id, ...order })}\n`);
    });
  }

  open = (session, target) => this.#tell({ op: 'open', session, ...target, era: this.era });
  call = (session, tool, args, key) => this.#tell({ op: 'call', session, tool, arguments: args, key });
  progress = (session, key) => this.#tell({ op: 'progress', session, key });
  cancel = (session, key) => this.#tell({ op: 'cancel', session, key });
  subscribe = (session, uri) => this.#tell({ op: 'subscribe', session, uri });
  tools = (session) => this.#tell({ op: 'tools', session });
  heard = (session) => this.#tell({ op: 'heard', session });
  close = (session) => this.#tell({ op: 'close', session });
  end = () => void this.#child.kill();
}

/** Every kind of client, by name. go and python are the programs for these languages: [command, ...arguments]. */
export function kinds({ go, python }) {
  assert.ok(go && python);
  return {
    'TypeScript 1': { era: 'legacy', start: () => new First() },
    'TypeScript 2, legacy': { era: 'legacy', start: () => new Second('legacy') },
    'TypeScript 2': { era: 'modern', start: () => new Second('modern') },
    'Go, legacy': { era: 'legacy', start: () => new Program('legacy', ...go) },
    Go: { era: 'modern', start: () => new Program('modern', ...go) },
    'Python, legacy': { era: 'legacy', start: () => new Program('legacy', ...python) },
    Python: { era: 'modern', start: () => new Program('modern', ...python) },
  };
}
