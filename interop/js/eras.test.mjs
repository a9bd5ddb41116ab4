// A server that speaks both eras, by the official TypeScript SDK: what each client gets of it by itself, and through
// the bridge when the file chooses an era. Properties M3, M4, M8, M9.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

import { connect as connectOlder, text } from './clients.mjs';
import { patience, root, startDaemon, until } from './launch.mjs';

const answer = (name) => async () => ({ action: 'accept', content: { name } });

/** A client of an era whose user is called by it. heard counts how often it was told of other tools. */
async function connect(url, era) {
  const told = { heard: 0 };
  if (era === 'legacy') {
    const peer = await connectOlder(url, { capabilities: { elicitation: {} }, handlers: [[ElicitRequestSchema, answer(era)]] });
    peer.client.fallbackNotificationHandler = async ({ method }) => void (told.heard += method === 'notifications/tools/list_changed');
    return Object.assign(peer, { told });
  }
  const listChanged = { tools: { autoRefresh: false, onChanged: () => void told.heard++ } };
  const client = new Client({ name: era, version: '1' }, { capabilities: { elicitation: {} }, versionNegotiation: { mode: { pin: '2026-07-28' } }, listChanged });
  client.setRequestHandler('elicitation/create', answer(era));
  await client.connect(new StreamableHTTPClientTransport(url), { timeout: 180_000 });
  return { client, told, call: (tool) => client.callTool({ name: tool, arguments: {} }), leave: () => client.close() };
}

test('a server of both eras', { timeout: 300_000 }, async (t) => {
  const both = { command: process.execPath, args: [join(root, 'js', 'bothserver.mjs')] };
  const daemon = await startDaemon(t, { servers: () => ({ auto: { ...both }, legacy: { ...both, era: 'legacy' }, modern: { ...both, era: 'modern' } }) });
  for (const setting of ['auto', 'legacy', 'modern']) {
    for (const era of ['legacy', 'modern']) {
      await t.test(`era ${setting}, a client of the ${era} era`, async () => {
        const spoken = setting === 'auto' ? era : setting;
        const peer = await connect(daemon.mcp(setting), era);
        const { tools } = await peer.client.listTools();
        assert.ok(tools.some(({ name }) => name === 'list'));
        assert.equal(text(await peer.call('era')), spoken);
        assert.equal(text(await peer.call('name')), spoken === 'modern' ? `hello ${era}` : 'nobody');
        assert.equal((await peer.call('fail')).isError, true);
        const { structuredContent } = await peer.call('list');
        assert.deepEqual(structuredContent?.result ?? structuredContent, [1, 2]);
        await peer.leave();
      });
    }
  }
  await t.test('both hear of a new tool', async () => {
    const peers = await Promise.all(['legacy', 'modern'].map((era) => connect(daemon.mcp('modern'), era)));
    for (const { client } of peers) await client.listTools();
    await peers[0].call('more');
    await until('both have heard', patience, () => peers.every(({ told }) => told.heard > 0));
    for (const { client } of peers) assert.ok((await client.listTools()).tools.some(({ name }) => name === 'late'));
    for (const peer of peers) await peer.leave();
  });
});
