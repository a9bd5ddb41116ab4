// The control: the steps that the other tests ask of roundhouse pass against the official everything
// server's own Streamable HTTP. If this fails, the steps are wrong, not roundhouse.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ResourceUpdatedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

import { connect } from './clients.mjs';
import { patience, startEverything, until } from './launch.mjs';
import { useEverything } from './scenario.mjs';

test('control: five clients of the everything server without roundhouse', { timeout: 300_000 }, async (t) => {
  const url = await startEverything(t);
  const sessions = await Promise.all([0, 1, 2, 3, 4].map((i) => connect(url, { name: `client-${i}` })));
  await Promise.all(sessions.map(useEverything));
  for (const session of sessions) {
    assert.deepEqual(session.errors.map(String), []);
    await session.leave();
  }
});

test('control: a subscriber of the everything server without roundhouse', { timeout: 300_000 }, async (t) => {
  const url = await startEverything(t);
  const seen = [];
  const session = await connect(url, { notifications: [[ResourceUpdatedNotificationSchema, ({ params }) => seen.push(params.uri)]] });
  const uri = 'demo://resource/dynamic/text/1';
  await session.client.subscribeResource({ uri });
  await session.call('toggle-subscriber-updates');
  await until('the update arrives', patience, () => seen.length > 0);
  assert.deepEqual([...new Set(seen)], [uri]);
  await session.leave();
});
