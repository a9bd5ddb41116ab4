// Starts the real daemon for a test, with its own configuration, state directory and port, and
// finds every process that came of it. Linux only: processes are found through /proc.

import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { copyFileSync, linkSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { setTimeout as sleep } from 'node:timers/promises';

export const root = resolve(dirname(fileURLToPath(import.meta.url)), '..');
const binary = resolve(process.env.ROUNDHOUSE_BIN ?? join(root, '..', 'bin', 'roundhouse'));

/** How long to wait for what has to happen, in milliseconds. It only bounds hangs: the machine may be slow, and busy. */
export const patience = 60_000;

// Everything a test started and has not ended yet; what is left when the test process exits, for
// whatever reason, is killed.
const running = new Set();
process.on('exit', () => {
  for (const thing of running) thing.killAll();
});
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.on(signal, () => process.exit(1));
}

/** The start file of an official server package under node_modules. */
export function serverScript(name) {
  return join(root, 'node_modules', '@modelcontextprotocol', `server-${name}`, 'dist', 'index.js');
}

const given = new Set(); // ports, which nobody may have taken yet

/** A port of 127.0.0.1 that was free a moment ago, a different one each time. */
export async function freePort() {
  for (;;) {
    const port = await new Promise((done, fail) => {
      const probe = createServer();
      probe.on('error', fail);
      probe.listen(0, '127.0.0.1', () => {
        const { port } = probe.address();
        probe.close(() => done(port));
      });
    });
    if (given.has(port)) continue;
    given.add(port);
    return port;
  }
}

/** Polls until ask() returns something true, and returns that; throws after ms milliseconds. */
export async function until(what, ms, ask) {
  const deadline = Date.now() + ms;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    if (Date.now() > deadline) throw new Error(`gave up after ${ms} ms waiting until ${what}`);
    await sleep(20);
  }
}

/** The processes for which keep({pid, command, environment, executable}) holds. Zombies are not listed: they have no command. */
export function processes(keep) {
  const found = [];
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    try {
      const command = readFileSync(`/proc/${entry}/cmdline`, 'utf8').split('\0').filter(Boolean);
      if (command.length === 0) continue;
      const one = {
        pid: Number(entry),
        command,
        environment: readFileSync(`/proc/${entry}/environ`, 'utf8').split('\0'),
        executable: readlinkSync(`/proc/${entry}/exe`),
      };
      if (keep(one)) found.push(one);
    } catch {
      // It ended while we looked, or belongs to somebody else.
    }
  }
  return found;
}

/** A child in a process group of its own, with its output kept; kill(signal) reaches the group. */
export class Child {
  constructor(command, args, options = {}) {
    this.output = '';
    this.process = spawn(command, args, { ...options, detached: true, stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [this.process.stdout, this.process.stderr]) {
      stream.setEncoding('utf8');
      stream.on('data', (text) => {
        this.output = (this.output + text).slice(-256 * 1024);
      });
    }
    this.ended = new Promise((done) => {
      this.process.on('error', (error) => done({ error }));
      this.process.on('exit', (code, signal) => done({ code, signal }));
    });
    running.add(this);
  }

  get pid() {
    return this.process.pid;
  }

  killAll() {
    try {
      process.kill(-this.pid, 'SIGKILL');
    } catch {
      // The group is empty already.
    }
    running.delete(this);
  }
}

/** A running daemon. Its fields: url (of its listener), files (a directory that the "files" server serves), pid. */
class Daemon {
  #child;
  #directory;
  #mark;
  #executable;

  constructor(directory, mark, executable, url) {
    this.#directory = directory;
    this.#mark = mark;
    this.#executable = executable;
    this.url = url;
    this.files = join(directory, 'files');
    running.add(this);
  }

  /** Starts the daemon's process, at first or where it has ended, and waits until it is ready. */
  async start() {
    this.#child?.killAll();
    const child = new Child(this.#executable, ['serve', '--config', join(this.#directory, 'mcp.json'), '--listen', new URL(this.url).host], { cwd: this.#directory });
    this.#child = child;
    let dead;
    child.ended.then((end) => {
      dead = end;
    });
    await until('the daemon is ready', patience, async () => {
      if (dead) throw new Error(`the daemon ended (${JSON.stringify(dead)}): ${child.output}`);
      const response = await fetch(new URL('/readyz', this.url)).catch(() => undefined);
      await response?.body?.cancel();
      return response?.ok;
    });
  }

  get pid() {
    return this.#child.pid;
  }

  /** A copy of the binary, which only this daemon and its helpers run. */
  get executable() {
    return this.#executable;
  }

  /** What the daemon wrote to stderr and stdout, the end of it. */
  get output() {
    return this.#child.output;
  }

  /** The URL of one server, or of the aggregate without a name. */
  mcp(server) {
    return new URL(server ? `/mcp/${server}` : '/mcp', this.url);
  }

  /** Resolves to {code, signal} when the daemon's own process has ended. */
  get ended() {
    return this.#child.ended;
  }

  signal(name) {
    process.kill(this.pid, name);
  }

  async connections() {
    const response = await fetch(new URL('/api/v1/connections', this.url));
    if (!response.ok) throw new Error(`/api/v1/connections: ${response.status} ${await response.text()}`);
    return (await response.json()).connections;
  }

  /** Waits until so many calls are open at a server. The last of them may still be on its way there. */
  async calls(server, count) {
    const open = async () => (await this.connections()).filter((one) => one.server === server).reduce((sum, { inFlight }) => sum + inFlight, 0);
    await until(`${count} calls are open at ${server}`, patience, async () => (await open()) === count);
  }

  /** Every process started for a server, launchers and descendants too: they inherit a mark from their configured environment. */
  serverProcesses() {
    return processes(({ environment }) => environment.includes(this.#mark));
  }

  /** The MCP servers themselves, without launchers in front of them. */
  servers() {
    return this.serverProcesses().filter(({ command, executable }) => /node[^/]*$/.test(executable) && command.some((word) => /server-(everything|filesystem|memory)/.test(word)) && !command.includes('-y'));
  }

  /** Every process of this daemon: itself, its helpers (they run the same file, and each daemon has a copy of its own) and all of its servers. */
  allProcesses() {
    return processes(({ environment, executable }) => environment.includes(this.#mark) || executable.replace(/ \(deleted\)$/, '') === this.#executable);
  }

  killAll() {
    this.#child?.killAll();
    for (const { pid } of this.allProcesses()) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // It ended by itself.
      }
    }
    rmSync(this.#directory, { recursive: true, force: true });
    running.delete(this);
  }
}

/**
 * Starts a daemon with the three official servers ("everything", "files", "memory") and waits until it is ready.
 * servers replaces the mcpServers object: a function of the default one. settings are further top-level keys.
 * The daemon and all that came of it is killed when the test t ends; if the test failed, the daemon's output is shown.
 */
export async function startDaemon(t, { servers = (defaults) => defaults, settings = {} } = {}) {
  const directory = realpathSync(mkdtempSync(join(tmpdir(), 'roundhouse-interop-')));
  const name = 'ROUNDHOUSE_INTEROP';
  const value = randomUUID();
  const env = { [name]: value };
  const files = join(directory, 'files');
  const defaults = {
    everything: { command: process.execPath, args: [serverScript('everything')], env },
    files: { command: process.execPath, args: [serverScript('filesystem'), files], env },
    memory: { command: process.execPath, args: [serverScript('memory')], env: { ...env, MEMORY_FILE_PATH: join(directory, 'memory.jsonl') } },
  };
  const executable = join(directory, 'roundhouse');
  try {
    linkSync(binary, executable);
  } catch {
    copyFileSync(binary, executable);
  }
  mkdirSync(files);
  const mcpServers = servers(defaults);
  for (const server of Object.values(mcpServers)) server.env = { ...env, ...server.env };
  writeFileSync(join(directory, 'mcp.json'), JSON.stringify({ mcpServers, stateDir: join(directory, 'state'), pool: { drainDelay: '2s' }, ...settings }, null, 2));

  const daemon = new Daemon(directory, `${name}=${value}`, executable, `http://127.0.0.1:${await freePort()}`);
  t.after(() => {
    if (process.env.ROUNDHOUSE_INTEROP_OUTPUT) t.diagnostic(daemon.output);
    daemon.killAll();
  });
  await daemon.start();
  return daemon;
}

/** Starts the everything server's own Streamable HTTP and returns its URL: the control, without roundhouse. */
export async function startEverything(t) {
  const port = await freePort();
  const child = new Child(process.execPath, [serverScript('everything'), 'streamableHttp'], { env: { ...process.env, PORT: String(port) } });
  t.after(() => child.killAll());
  await until('the everything server listens', patience, () => child.output.includes('listening on port'));
  return new URL(`http://127.0.0.1:${port}/mcp`);
}
