// The official clients of both vendors in both languages, made alike. A client asks:
//
//   ask({api, how, base, model, …}) resolves to what its program sees, and never rejects:
//     {text, finish, events}               of an answer, as far as how tells of it
//     {error: {name, status, message}}     of one that raises
//
// how is 'create' (no stream), 'raw' (the events of a stream), 'helper' (the SDK's own aggregation of them) or 'leave' (closes the stream after the
// first event that has text). base is the URL before /v1. retries is how often the SDK may try again, 0 if absent; timeout its limit in
// seconds; headers further ones. The JavaScript clients run in this process, the Python ones in a program that is told the same, one JSON object a line.

import { spawn } from 'node:child_process';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const here = dirname(fileURLToPath(import.meta.url));

/** The Python that has the clients. */
export const python = join(here, '.venv', 'bin', 'python');

const question = [{ role: 'user', content: 'Say hello.' }];

const ways = {
  chat: {
    client: OpenAI,
    create: (client, order) => client.chat.completions.create(order),
    helper: (client, order) => client.chat.completions.stream(order).finalChatCompletion(),
    request: { messages: question },
    whole: ({ choices }) => ({ text: choices[0].message.content, finish: choices[0].finish_reason }),
    text: (chunk) => chunk.choices?.[0]?.delta?.content,
  },
  messages: {
    client: Anthropic,
    create: (client, order) => client.messages.create(order),
    helper: (client, order) => client.messages.stream(order).finalMessage(),
    request: { messages: question, max_tokens: 50 },
    whole: ({ content, stop_reason }) => ({ text: content.map(({ text }) => text).join(''), finish: stop_reason }),
    text: (event) => event.delta?.text,
  },
  responses: {
    client: OpenAI,
    create: (client, order) => client.responses.create(order),
    helper: (client, order) => client.responses.stream(order).finalResponse(),
    request: { input: 'Say hello.' },
    whole: ({ output, status }) => ({ text: output[0].content[0].text, finish: status }),
    text: (event) => (event.type === 'response.output_text.delta' ? event.delta : undefined),
  },
};

class JavaScript {
  async ask({ api, how, base, model, retries = 0, timeout = 60, headers = {} }) {
    const way = ways[api];
    const client = new way.client({ apiKey: 'dummy', baseURL: way.client === OpenAI ? `${base}/v1` : base, maxRetries: retries, timeout: timeout * 1000, defaultHeaders: headers });
    const order = { model, ...way.request };
    try {
      if (how === 'create') return way.whole(await way.create(client, order));
      if (how === 'helper') return way.whole(await way.helper(client, order));
      const stream = await way.create(client, { ...order, stream: true });
      const seen = { text: '', events: 0 };
      for await (const event of stream) {
        seen.events++;
        const text = way.text(event);
        seen.text += text ?? '';
        if (text && how === 'leave') break; // which closes the connection
      }
      return seen;
    } catch (error) {
      return { error: { name: error.constructor.name, status: error.status ?? null, message: error.message } };
    }
  }

  end() {}
}

/** A program in Python that is told what to ask, one JSON object a line, and tells what came of it. */
export class Python {
  #waiting = new Map();
  #count = 0;
  #child;

  constructor(file) {
    this.#child = spawn(python, [file], { stdio: ['pipe', 'pipe', 'inherit'] });
    const fail = (why) => {
      for (const { fail } of this.#waiting.values()) fail(why);
    };
    this.#child.on('error', fail);
    this.#child.on('exit', (code, signal) => fail(new Error(`the Python client ended: ${code ?? signal}`)));
    createInterface({ input: this.#child.stdout }).on('line', (line) => {
      const { id, ...result } = JSON.parse(line);
      this.#waiting.get(id).done(result);
      this.#waiting.delete(id);
    });
  }

  ask(order) {
    return new Promise((done, fail) => {
      const id = ++this.#count;
      this.#waiting.set(id, { done, fail });
      this.#child.stdin.write(`${JSON.stringify({ id, ...order })}\n`);
    });
  }

  end() {
    this.#child.kill();
  }
}

/** Starts the clients of both languages. They end with the test. */
export function startClients(t) {
  const clients = { JavaScript: new JavaScript(), Python: new Python(join(here, 'client.py')) };
  t.after(() => Object.values(clients).forEach((client) => client.end()));
  return clients;
}
