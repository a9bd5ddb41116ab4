// What many clients of one server do at once, and what each of them must see. All clients run the
// same steps in the same order, so their request ids and progress tokens collide throughout.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { text } from './clients.mjs';
import { until } from './launch.mjs';

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
  await sessions[0].call('toggle-subscriber-updates');
  try {
    await until('every subscriber has its update', 4_000, () => updates.every((seen, i) => i === last || seen.length >= (i < 2 ? 2 : 1)));
    await sleep(200);
    updates.forEach((seen, i) => {
      const expected = i === last ? [] : i < 2 ? [uri(i), shared] : [uri(i)];
      assert.deepEqual([...seen].sort(), expected.sort(), `updates of client ${i}`);
    });
    // One of two subscribers leaves the shared URI; the other keeps it.
    await sessions[0].client.unsubscribeResource({ uri: shared });
    const before = updates[0].filter((seen) => seen === shared).length;
    await sessions[0].call('toggle-subscriber-updates');
    await sessions[0].call('toggle-subscriber-updates');
    await until('the remaining subscriber has another update', 4_000, () => updates[1].filter((seen) => seen === shared).length >= 2);
    await sleep(200);
    assert.equal(updates[0].filter((seen) => seen === shared).length, before, 'no update after unsubscribing');
  } finally {
    await sessions[0].call('toggle-subscriber-updates');
  }
}
