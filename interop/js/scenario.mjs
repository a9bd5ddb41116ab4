// What many clients of one server do at once, and what each of them must see. All clients run the
// same steps in the same order, so their request ids and progress tokens collide throughout.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { text } from './clients.mjs';
import { patience, until } from './launch.mjs';

/** Client number i of the everything server: answers, progress and cancellation, all its own. */
export async function useEverything(session, i) {
  const sums = await Promise.all(
    [0, 1, 2, 3, 4].map(async (k) => {
      const [a, b] = [1000 * (i + 1), k];
      return [a, b, text(await session.call('get-sum', { a, b }))];
    }),
  );
  for (const [a, b, answer] of sums) assert.equal(answer, `The sum of ${a} and ${b} is ${a + b}.`);

  // Each client counts to a total of its own: progress that went astray has the wrong total.
  const steps = 3 + i;
  const progress = [];
  const done = await session.call('trigger-long-running-operation', { duration: 0.5, steps }, { onprogress: (p) => progress.push(p) });
  assert.equal(text(done), `Long running operation completed. Duration: 0.5 seconds, Steps: ${steps}.`);
  assert.deepEqual(
    progress,
    Array.from({ length: steps }, (_, k) => ({ progress: k + 1, total: steps })),
  );

  // Every other client cancels; the calls of the others, with the same request ids, run to their end.
  const cancel = new AbortController();
  const slow = session.call('trigger-long-running-operation', { duration: 1.5, steps: 1 + i }, { signal: cancel.signal });
  if (i % 2 === 0) {
    setTimeout(() => cancel.abort('changed my mind'), 100);
    await assert.rejects(slow, /changed my mind/);
  } else {
    assert.equal(text(await slow), `Long running operation completed. Duration: 1.5 seconds, Steps: ${1 + i}.`);
  }
  assert.equal(text(await session.call('echo', { message: `still ${i}` })), `Echo: still ${i}`);
}

/** Client number i of the filesystem server: writes and reads a file that only it knows. */
export async function useFiles(session, i, directory) {
  const path = join(directory, `client-${i}.txt`);
  const content = `written by client ${i}\n`.repeat(i + 1);
  const written = await session.call('write_file', { path, content });
  assert.ok(!written.isError, text(written));
  assert.equal(await readFile(path, 'utf8'), content);
  assert.equal(text(await session.call('read_text_file', { path })), content);
  const outside = await session.call('read_text_file', { path: '/etc/hostname' });
  assert.equal(outside.isError, true, 'a path outside the allowed directory is refused by the tool, as a result');
}

/** Makes the entity that useMemory looks for. The memory server itself loses one of two writes at once, so one after the other. */
export async function remember(session, i) {
  const made = await session.call('create_entities', { entities: [{ name: `entity-${i}-x`, entityType: 'test', observations: [`seen by client ${i}`] }] });
  assert.ok(!made.isError, text(made));
}

/** Client number i of the memory server: finds what it remembered, and only that. */
export async function useMemory(session, i) {
  const found = await session.call('open_nodes', { names: [`entity-${i}-x`] });
  assert.deepEqual(
    JSON.parse(text(found)).entities.map((entity) => entity.observations),
    [[`seen by client ${i}`]],
  );
}

/**
 * Subscriptions of sessions on one everything server whose simulated updates are process wide. Every client subscribes to
 * a URI of its own, the first two share one more, and the last takes its subscription back. updates[i] is where
 * client i collects the URIs of resources/updated.
 */
export async function useSubscriptions(sessions, updates) {
  const uri = (i) => `demo://resource/dynamic/text/${i + 1}`;
  const shared = 'demo://resource/dynamic/text/1000';
  const last = sessions.length - 1;
  await Promise.all(sessions.map(({ client }, i) => client.subscribeResource({ uri: uri(i) })));
  await Promise.all([0, 1].map((i) => sessions[i].client.subscribeResource({ uri: shared })));
  await sessions[last].client.unsubscribeResource({ uri: uri(last) });
  const expected = sessions.map((_, i) => (i === last ? [] : i < 2 ? [uri(i), shared] : [uri(i)]));
  const toggle = () => sessions[0].call('toggle-subscriber-updates');
  const heard = (i, one) => updates[i].filter((seen) => seen === one).length;
  const counts = () => [...new Set(expected.flatMap((uris, i) => uris.map((one) => heard(i, one))))];
  // The server tells at once and then every five seconds, so on a busy machine more than once; everybody has to hear of it equally often.
  const begin = performance.now();
  await toggle();
  await until('every subscriber has its update', patience, () => !counts().includes(0));
  await toggle();
  const most = 1 + (performance.now() - begin) / 5_000;
  await until('all have heard equally often, and nothing more comes', patience, async () => {
    const before = JSON.stringify(counts());
    await sleep(200); // for updates that should not come
    return counts().length === 1 && JSON.stringify(counts()) === before;
  });
  assert.ok(counts()[0] <= most, `${counts()[0]} updates of each, and at most ${most.toFixed(1)} were sent`);
  updates.forEach((seen, i) => assert.deepEqual([...new Set(seen)].sort(), expected[i].toSorted(), `updates of client ${i}`));
  // One of two subscribers leaves the shared URI; the other keeps it.
  await sessions[0].client.unsubscribeResource({ uri: shared });
  const before = [0, 1].map((i) => heard(i, shared));
  await toggle();
  await until('the remaining subscriber has another update', patience, () => heard(1, shared) > before[1]);
  await sleep(200);
  await toggle();
  assert.equal(heard(0, shared), before[0], 'no update after unsubscribing');
}
