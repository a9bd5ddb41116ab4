// The coding agents under test: how each is told of one MCP server and of a model on loopback, and how it is run once, without a person.

import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { Child } from '../js/launch.mjs';

const modules = join(dirname(fileURLToPath(import.meta.url)), 'node_modules');

/**
 * An agent is {name, prepare(run)}. A run is {home, model, server, prompt}: its own home directory, the model's URL, the MCP
 * server and what to say. A server is {name, url} or {name, command, args}. prepare writes the agent's files and returns
 * {command, args, env}. Whatever an agent would ask a person about the server's tools is allowed beforehand.
 */
export const agents = [
  { name: 'qwen-code', prepare: (run) => qwen('@qwen-code/qwen-code/cli-entry.js', run) },
  { name: 'qwen-code 0.15', prepare: (run) => qwen('qwen-code-0.15/cli.js', run) },
  { name: 'Codex', prepare: codex },
  { name: 'Claude Code', prepare: claude },
];

function qwen(script, { home, model, server: { name, url, ...stdio }, prompt }) {
  write(home, '.qwen/settings.json', {
    mcpServers: { [name]: { ...(url ? { httpUrl: url } : stdio), trust: true } },
    general: { enableAutoUpdate: false },
    memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false },
    privacy: { usageStatisticsEnabled: false },
    security: { auth: { selectedType: 'openai' } },
  });
  return {
    command: process.execPath,
    args: [join(modules, script), '--approval-mode', 'yolo', '-p', prompt],
    env: { OPENAI_API_KEY: 'dummy', OPENAI_BASE_URL: `${model}/v1`, OPENAI_MODEL: 'scripted', QWEN_CODE_SUPPRESS_YOLO_WARNING: '1' },
  };
}

function codex({ home, model, server: { name, ...entry }, prompt }) {
  // "required" makes Codex wait for the server; otherwise its first turn goes without the tools of a server that takes a second to start.
  write(home, '.codex/config.toml', [
    'model = "scripted"',
    'model_provider = "scripted"',
    'check_for_update_on_startup = false',
    'features = { apps = false, plugins = false }',
    'analytics = { enabled = false }',
    '[model_providers.scripted]',
    'name = "scripted"',
    `base_url = "${model}/v1"`,
    'env_key = "SCRIPTED_KEY"',
    'wire_api = "responses"',
    `[mcp_servers.${name}]`,
    ...Object.entries(entry).map(([key, value]) => `${key} = ${JSON.stringify(value)}`),
    'required = true',
    'default_tools_approval_mode = "approve"',
  ]);
  return {
    command: process.execPath,
    args: [join(modules, '@openai/codex/bin/codex.js'), 'exec', '--skip-git-repo-check', '--sandbox', 'read-only', prompt],
    env: { SCRIPTED_KEY: 'dummy' },
  };
}

function claude({ home, model, server: { name, ...entry }, prompt }) {
  const file = write(home, 'mcp.json', { mcpServers: { [name]: { type: entry.url ? 'http' : 'stdio', ...entry } } });
  return {
    command: join(modules, `@anthropic-ai/claude-code-${process.platform}-${process.arch}`, 'claude'),
    args: ['--mcp-config', file, '--strict-mcp-config', '--allowedTools', `mcp__${name}`, '-p', prompt],
    env: { ANTHROPIC_API_KEY: 'dummy', ANTHROPIC_BASE_URL: model, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1', DISABLE_AUTOUPDATER: '1' },
  };
}

/** Writes a file under home, lines or JSON, and returns its path. */
function write(home, name, content) {
  const path = join(home, name);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, Array.isArray(content) ? content.join('\n') : JSON.stringify(content, null, 2));
  return path;
}

/**
 * Runs the agent once in a new home directory. Returns {code, signal, output, took} (took in milliseconds) when it has ended, or
 * has been killed after limit milliseconds. It sees no variable of this process but PATH. Whatever it wants of hosts
 * other than 127.0.0.1 it asks of the model's server, as its proxy, which refuses and remembers; proxy is that server's URL if model is not.
 */
export async function run(t, agent, { model, proxy: refusing = model, server, prompt, limit = 200_000 }) {
  const home = realpathSync(mkdtempSync(join(tmpdir(), 'roundhouse-agent-')));
  const work = join(home, 'work');
  mkdirSync(work);
  const { command, args, env } = agent.prepare({ home, model, server, prompt });
  const proxy = { HTTP_PROXY: refusing, HTTPS_PROXY: refusing, NO_PROXY: '127.0.0.1,localhost' };
  const begin = performance.now();
  const child = new Child(command, args, { cwd: work, env: { PATH: process.env.PATH, HOME: home, LANG: 'C.UTF-8', NO_COLOR: '1', ...proxy, ...env } });
  const timer = setTimeout(() => child.killAll(), limit);
  t.after(() => {
    child.killAll();
    rmSync(home, { recursive: true, force: true, maxRetries: 5 });
  });
  const end = await child.ended;
  clearTimeout(timer);
  return { ...end, output: child.output, took: performance.now() - begin };
}
