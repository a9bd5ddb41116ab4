// A real launcher chain: npx starts a shell, which starts the server.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { connect, text } from './clients.mjs';
import { patience, startDaemon, until } from './launch.mjs';

// P1, P2: the tree ends, not only the process that was started. The first start may fill npm's cache.
test('a server behind npx works, is shared and leaves no process', { timeout: 300_000 }, async (t) => {
  const cache = process.env.npm_config_cache;
  const daemon = await startDaemon(t, {
    servers: () => ({
      everything: {
        command: 'npx',
        args: ['-y', '@modelcontextprotocol/server-everything@2026.8.31'],
        env: cache ? { npm_config_cache: cache } : {},
        startTimeout: '170s',
      },
    }),
  });
  const sessions = await Promise.all([0, 1, 2].map(() => connect(daemon.mcp('everything'))));
  const answers = await Promise.all(sessions.map((session, i) => session.call('echo', { message: `${i}` })));
  answers.forEach((answer, i) => assert.equal(text(answer), `Echo: ${i}`));
  const chain = daemon.serverProcesses();
  t.diagnostic(chain.map(({ pid, command }) => `${pid} ${command.join(' ')}`).join('; '));
  assert.ok(chain.length >= 2, 'npx keeps a process in front of the server');
  assert.equal((await daemon.connections()).length, 1);
  await Promise.all(sessions.map((session) => session.leave()));
  await until('the whole chain has ended', patience, () => daemon.serverProcesses().length === 0);
});

test('kill -9 of the daemon ends a launcher chain, too', { timeout: 300_000 }, async (t) => {
  const daemon = await startDaemon(t, {
    servers: () => ({ everything: { command: 'npx', args: ['-y', '@modelcontextprotocol/server-everything@2026.8.31'], startTimeout: '170s' } }),
  });
  const session = await connect(daemon.mcp('everything'));
  assert.equal(text(await session.call('echo', { message: 'hello' })), 'Echo: hello');
  daemon.signal('SIGKILL');
  await daemon.ended;
  await until('everything of the killed daemon has ended', patience, () => daemon.allProcesses().length === 0);
});
