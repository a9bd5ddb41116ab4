// The aggregate at /mcp: all servers behind one client. Property H7.

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';

import { ResourceUpdatedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

import { connect, text } from './clients.mjs';
import { patience, startDaemon, until } from './launch.mjs';

/** All pages of a list; a cursor that repeats is an error. */
async function pages(list, member) {
  const all = [];
  const cursors = new Set();
  let cursor;
  do {
    const page = await list(cursor === undefined ? undefined : { cursor });
    all.push(...page[member]);
    cursor = page.nextCursor;
    assert.ok(!cursors.has(cursor), 'a cursor came twice');
    cursors.add(cursor);
  } while (cursor !== undefined);
  return all;
}

const unique = (names) => assert.equal(new Set(names).size, names.length, `twice the same name in ${names}`);

test('the aggregate lists the tools of every server under server__tool, and calls them', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const session = await connect(daemon.mcp());
  const tools = await pages((params) => session.client.listTools(params), 'tools');
  const names = tools.map(({ name }) => name);
  unique(names);
  for (const name of names) assert.match(name, /^[A-Za-z0-9_-]{1,64}$/);

  // What the aggregate shows of a server is what the server shows.
  for (const server of ['everything', 'files', 'memory']) {
    const direct = await connect(daemon.mcp(server));
    const own = await pages((params) => direct.client.listTools(params), 'tools');
    const prefix = `${server}__`;
    const seen = tools.filter(({ name }) => name.startsWith(prefix)).map((tool) => ({ ...tool, name: tool.name.slice(prefix.length) }));
    assert.deepEqual(seen, own, `the tools of ${server}`);
    await direct.leave();
  }

  const path = join(daemon.files, 'note.txt');
  await writeFile(path, 'a note');
  const progress = [];
  const [echo, note, made, slow] = await Promise.all([
    session.call('everything__echo', { message: 'through the aggregate' }),
    session.call('files__read_text_file', { path }),
    session.call('memory__create_entities', { entities: [{ name: 'n', entityType: 't', observations: ['o'] }] }),
    session.call('everything__trigger-long-running-operation', { duration: 0.3, steps: 3 }, { onprogress: (p) => progress.push(p.progress) }),
  ]);
  assert.equal(text(echo), 'Echo: through the aggregate');
  assert.equal(text(note), 'a note');
  assert.equal(JSON.parse(text(made))[0].name, 'n');
  assert.equal(text(slow), 'Long running operation completed. Duration: 0.3 seconds, Steps: 3.');
  assert.deepEqual(progress, [1, 2, 3]);
  for (const name of ['everything__nonsense', 'nonsense__echo', 'echo']) {
    await assert.rejects(session.call(name, {}), ({ code }) => code === -32602, `a tool named ${name}`);
  }
  assert.equal(daemon.servers().length, 3, 'the aggregate shares with everybody else');
  assert.deepEqual(session.errors.map(String), []);
  await session.leave();
});

test('the aggregate lists and serves prompts, completions, resources and subscriptions', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t);
  const updates = [];
  const session = await connect(daemon.mcp(), { notifications: [[ResourceUpdatedNotificationSchema, ({ params }) => updates.push(params.uri)]] });
  const { client } = session;

  const prompts = (await pages((params) => client.listPrompts(params), 'prompts')).map(({ name }) => name);
  unique(prompts);
  for (const name of ['simple-prompt', 'args-prompt', 'completable-prompt', 'resource-prompt']) assert.ok(prompts.includes(`everything__${name}`), name);
  const prompt = await client.getPrompt({ name: 'everything__args-prompt', arguments: { city: 'Turin' } });
  assert.equal(prompt.messages[0].content.text, "What's weather in Turin?");
  const completed = await client.complete({ ref: { type: 'ref/prompt', name: 'everything__completable-prompt' }, argument: { name: 'department', value: 'Eng' } });
  assert.deepEqual(completed.completion.values, ['Engineering']);

  const resources = await pages((params) => client.listResources(params), 'resources');
  unique(resources.map(({ uri }) => uri));
  const document = resources.find(({ name }) => name.includes('architecture.md'));
  assert.ok(document, `no architecture.md in ${resources.map(({ name }) => name)}`);
  const read = await client.readResource({ uri: document.uri });
  assert.equal(read.contents[0].uri, document.uri);
  assert.ok(read.contents[0].text.length > 100);
  const templates = await pages((params) => client.listResourceTemplates(params), 'resourceTemplates');
  assert.ok(templates.some(({ uriTemplate }) => uriTemplate.includes('demo://resource/dynamic/text/')));
  const dynamic = await client.readResource({ uri: 'demo://resource/dynamic/text/7' });
  assert.match(dynamic.contents[0].text, /^Resource 7: /);

  await client.subscribeResource({ uri: 'demo://resource/dynamic/text/7' });
  await session.call('everything__toggle-subscriber-updates');
  await until('the update arrives', patience, () => updates.length > 0);
  assert.deepEqual([...new Set(updates)], ['demo://resource/dynamic/text/7']);
  await session.call('everything__toggle-subscriber-updates');
  assert.deepEqual(session.errors.map(String), []);
  await session.leave();
});

test('a server that cannot start hides only its own part', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t, {
    servers: ({ memory }) => ({ memory, broken: { command: process.execPath, args: ['-e', 'process.exit(3)'] } }),
  });
  const session = await connect(daemon.mcp());
  const names = (await pages((params) => session.client.listTools(params), 'tools')).map(({ name }) => name);
  assert.ok(names.includes('memory__read_graph'));
  assert.ok(!names.some((name) => name.startsWith('broken__')));
  assert.ok(!(await session.call('memory__read_graph')).isError);
  await session.leave();
});
