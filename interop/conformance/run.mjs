// Runs the official conformance suite against two official servers, directly and through roundhouse, and
// compares check by check: what passes directly has to pass through roundhouse, differences that are meant aside.
//
//   node run.mjs                 both servers, every way
//   node run.mjs go ping tools-  the Go SDK's server only; show only scenarios with these in their names
//
// It ends with 0 if nothing was lost, with 1 if something was, and with 2 if it could not find out. The suite
// needs a newer Node than ours, which the package brings.

import { execFile } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { Child, freePort, startDaemon, until } from '../js/launch.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const repository = resolve(here, '..', '..');
const modules = join(here, 'node_modules');
const revision = '2025-11-25';
const bound = 115_000; // milliseconds for everything
const run = promisify(execFile);

// How the suite reaches a server: all but the first through roundhouse, which reaches it over stdio, over HTTP
// with a connection for each session, or over HTTP with one for all.
const ways = ['direct', 'stdio', 'http', 'shared'];
const goServer = 'github.com/modelcontextprotocol/go-sdk/conformance/everything-server';
const tsServer = join(modules, '@modelcontextprotocol', 'server-everything', 'dist', 'index.js');

// Differences that are meant, as "scenario: check"; docs/conformance.md says why each one is.
const meant = new Map([
  ['server-sse-multiple-streams: server-sse-streams-functional', 'a lone answer comes as JSON, not as an event stream'],
  ['server-sse-polling: server-sse-retry-field', 'a lone answer comes as JSON, not as an event stream'],
  ['server-sse-polling: server-sse-priming-event', 'a lone answer comes as JSON, not as an event stream'],
]);

/** The servers: how each is started for stdio, and for HTTP at a port. */
function serversIn(directory) {
  const go = join(directory, 'everything-server');
  return {
    go: {
      about: `the Go SDK's conformance server`,
      prepare: () => run('go', ['build', '-o', go, goServer], { cwd: repository }),
      stdio: { command: go, args: [] },
      http: (port) => new Child(go, ['-stateless=false', '-http', `127.0.0.1:${port}`]),
    },
    everything: {
      about: 'the TypeScript everything server, which lacks most of what the suite looks for',
      prepare: () => {},
      stdio: { command: process.execPath, args: [tsServer] },
      http: (port) => new Child(process.execPath, [tsServer, 'streamableHttp'], { env: { ...process.env, PORT: String(port) } }),
    },
  };
}

/** Runs the suite against a URL. The result: for each scenario, how each check ended, and what it said. */
async function suite(url, output) {
  const node = join(modules, `node-linux-${process.arch}`, 'bin', 'node');
  const program = join(modules, '@modelcontextprotocol', 'conformance', 'dist', 'index.js');
  const going = run(node, [program, 'server', '--url', String(url), '--requirements', revision, '-o', output], { maxBuffer: 64 << 20 });
  const kill = () => going.child.kill('SIGKILL');
  process.prependListener('exit', kill); // before the directory is removed
  const { stdout, stderr } = await going.catch((failed) => {
    if (typeof failed.code !== 'number') throw failed; // else some scenario failed, which is what we are here to learn
    return failed;
  });
  process.off('exit', kill);
  const scenarios = new Map();
  for (const entry of readdirSync(output).sort()) {
    const [, name] = /^server-(.+)-\d{4}-\d\d-\d\dT[-\dZ]+$/.exec(entry);
    scenarios.set(name, JSON.parse(readFileSync(join(output, entry, 'checks.json'), 'utf8')));
  }
  if (scenarios.size === 0) throw new Error(`the suite did not run against ${url}: ${stderr}${stdout}`);
  return scenarios;
}

const failed = ({ status }) => status === 'FAILURE';

/** One table cell: how many of a scenario's checks passed. */
function cell(checks) {
  if (!checks) return 'missing';
  const bad = checks.filter(failed).length;
  return `${bad ? 'FAIL' : 'pass'} ${checks.filter(({ status }) => status === 'SUCCESS').length}/${checks.length}`;
}

/** The checks that ended better in one run of a scenario than in another: [id, what the worse run said]. */
function better(one, other) {
  const worst = (checks, id) => {
    const named = checks.filter((check) => check.id === id);
    return named.find(failed) ?? named.find(({ status }) => status !== 'SUCCESS') ?? named[0] ?? { status: 'missing' };
  };
  return [...new Set(one.map(({ id }) => id))]
    .filter((id) => worst(one, id).status === 'SUCCESS' && worst(other, id).status !== 'SUCCESS')
    .map((id) => [id, worst(other, id).errorMessage ?? worst(other, id).status]);
}

/** Prints how the suite went against one server, and returns how many checks were lost. */
function report(name, server, runs, filters) {
  console.log(`\n${name}: ${server.about}`);
  const names = [...new Set(ways.flatMap((way) => [...runs[way].keys()]))].filter((scenario) => filters.length === 0 || filters.some((filter) => scenario.includes(filter)));
  const row = (first, cells) => console.log(`  ${first.padEnd(32)}${cells.map((text) => text.padEnd(12)).join('')}`.trimEnd());
  row('', ways);
  const notes = [];
  let lost = 0;
  for (const scenario of names) {
    row(scenario, ways.map((way) => cell(runs[way].get(scenario))));
    const direct = runs.direct.get(scenario) ?? [];
    for (const way of ways.slice(1)) {
      const through = runs[way].get(scenario) ?? [];
      for (const [id] of better(through, direct)) notes.push(`${way} ${scenario}: ${id} passes only through roundhouse`);
      for (const [id, said] of better(direct, through)) {
        const why = meant.get(`${scenario}: ${id}`);
        if (!why || through.some(failed)) lost++;
        notes.push(why ? `${way} ${scenario}: ${id} does not apply: ${why}` : `${way} ${scenario}: ${id} is LOST: ${said}`);
      }
    }
  }
  row('scenarios passed', ways.map((way) => `${[...runs[way].values()].filter((checks) => !checks.some(failed)).length}/${runs[way].size}`));
  for (const note of notes) console.log(`  ${note}`);
  return lost;
}

async function main(words) {
  const directory = realpathSync(mkdtempSync(join(tmpdir(), 'roundhouse-conformance-')));
  process.on('exit', () => rmSync(directory, { recursive: true, force: true }));
  const undo = [];
  try {
    const known = serversIn(directory);
    const chosen = Object.keys(known).filter((name) => words.includes(name));
    const filters = words.filter((word) => !(word in known));
    const servers = Object.entries(known).filter(([name]) => chosen.length === 0 || chosen.includes(name));

    const configured = {};
    const direct = {};
    for (const [name, server] of servers) {
      await server.prepare();
      const port = await freePort();
      const child = server.http(port);
      undo.push(() => child.killAll());
      direct[name] = new URL(`http://127.0.0.1:${port}/mcp`);
      await until(`${name} listens`, 15_000, () => fetch(direct[name]).then(({ body }) => (body?.cancel(), true), () => false));
      configured[`${name}-stdio`] = server.stdio;
      configured[`${name}-http`] = { type: 'http', url: String(direct[name]), sharing: 'session' };
      configured[`${name}-shared`] = { type: 'http', url: String(direct[name]), sharing: 'shared' };
    }
    const daemon = await startDaemon({ after: (end) => undo.push(end), diagnostic: console.error }, { servers: () => configured });

    let lost = 0;
    for (const [name, server] of servers) {
      const runs = {};
      for (const way of ways) {
        const url = way === 'direct' ? direct[name] : daemon.mcp(`${name}-${way}`);
        runs[way] = await suite(url, join(directory, `${name}-${way}`));
      }
      lost += report(name, server, runs, filters);
    }
    console.log(lost ? `\n${lost} checks pass directly and not through roundhouse` : '\nall that passes directly passes through roundhouse');
    return lost ? 1 : 0;
  } finally {
    for (const end of undo.reverse()) await end();
  }
}

setTimeout(() => {
  console.error(`conformance: gave up after ${bound / 1000} s`);
  process.exit(2); // what was started is killed on exit
}, bound).unref();
process.exitCode = await main(process.argv.slice(2)).catch((error) => {
  console.error('conformance:', error);
  return 2;
});
