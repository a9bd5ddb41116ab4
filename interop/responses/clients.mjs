// The official clients of the Responses API in both languages, made alike. A client asks {base, how, …} and never rejects; how is
//
//   create    params  {response}
//   stream    params  {types, response}: read with the SDK's own accumulator, the types of its events and its final response
//   events    params  {events, broken}: read event by event, broken if the stream raised
//   retrieve  id      {response}
//   resume    id, query  {events, broken}
//   cancel    id      {response}
//   delete    id      {}
//   items     id, query  {items}
//
// and what raises before there is anything to read is {error: {name, status, code, param, message}}.

import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import OpenAI from 'openai';

import { Python } from '../model/clients.mjs';

const here = dirname(fileURLToPath(import.meta.url));

async function iterate(stream) {
  const events = [];
  try {
    for await (const event of stream) events.push(event);
  } catch (error) {
    return { events, broken: error.message };
  }
  return { events };
}

const ways = {
  create: async (api, { params }) => ({ response: await api.create(params) }),
  async stream(api, { params }) {
    const stream = api.stream(params);
    const types = [];
    for await (const { type } of stream) types.push(type);
    return { types, response: await stream.finalResponse() };
  },
  events: async (api, { params }) => iterate(await api.create({ ...params, stream: true })),
  retrieve: async (api, { id }) => ({ response: await api.retrieve(id) }),
  resume: async (api, { id, query }) => iterate(await api.retrieve(id, { stream: true, ...query })),
  cancel: async (api, { id }) => ({ response: await api.cancel(id) }),
  async delete(api, { id }) {
    await api.delete(id);
    return {};
  },
  async items(api, { id, query }) {
    const items = [];
    for await (const item of api.inputItems.list(id, query)) items.push(item);
    return { items };
  },
};

class JavaScript {
  async ask({ base, how, headers, ...order }) {
    const client = new OpenAI({ apiKey: 'dummy', baseURL: `${base}/v1`, maxRetries: 0, timeout: 60_000, defaultHeaders: headers });
    try {
      return await ways[how](client.responses, order);
    } catch (error) {
      return { error: { name: error.constructor.name, status: error.status ?? null, code: error.code ?? null, param: error.param ?? null, message: error.message } };
    }
  }

  end() {}
}

/** Starts the clients of both languages. They end with the test. */
export function startClients(t) {
  const program = new Python(join(here, 'client.py'));
  t.after(() => program.end());
  return { JavaScript: new JavaScript(), Python: { ask: (order) => program.ask({ order }) } };
}
