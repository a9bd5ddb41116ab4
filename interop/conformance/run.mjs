// Runs the official conformance suite against two official servers, directly and through roundhouse, in both eras, and
// compares check by check: what passes directly has to pass through roundhouse, but for what differences.mjs lists.
//
//   node run.mjs                             both revisions, both servers, every way
//   node run.mjs 2025-11-25 go ping tools-   one revision, one server; show only scenarios with these in their names
//
// It ends with 0 if nothing was lost, with 1 if something was, and with 2 if it could not find out. The suite
// needs a newer Node than ours, which the package brings.

import { execFile } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { Child, freePort, patience, startDaemon, until } from '../js/launch.mjs';
import { differences } from './differences.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const repository = resolve(here, '..', '..');
const modules = join(here, 'node_modules');
const bound = 900_000; // milliseconds for everything
const run = promisify(execFile);

const goServer = 'github.com/modelcontextprotocol/go-sdk/conformance/everything-server';
const tsServer = join(modules, '@modelcontextprotocol', 'server-everything', 'dist', 'index.js');

// How the suite reaches a server, for each revision: all but "direct" through roundhouse. Each way says which of the server's
// faces (below) it uses, and what else is configured. In "bridged" ways the server speaks the other era.
const ways = {
  '2025-11-25': {
    direct: { face: 'legacyHTTP' },
    stdio: { face: 'stdio' },
    http: { face: 'legacyHTTP', settings: { sharing: 'session' } },
    shared: { face: 'legacyHTTP', settings: { sharing: 'shared' } },
    bridged: { face: 'modernHTTP', settings: { era: 'modern' } },
  },
  '2026-07-28': {
    direct: { face: 'modernHTTP' },
    stdio: { face: 'stdio' },
    http: { face: 'modernHTTP' },
    bridged: { face: 'legacyHTTP', settings: { sharing: 'shared' } },
  },
};

/** The servers, and the faces that each has: a command for stdio, or a process that listens at a port. A way whose face a server has not is left out. */
function serversIn(directory) {
  const go = join(directory, 'everything-server');
  const everything = (port) => new Child(process.execPath, [tsServer, 'streamableHttp'], { env: { ...process.env, PORT: String(port) } });
  return {
    go: {
      about: `the Go SDK's conformance server`,
      prepare: () => run('go', ['build', '-o', go, goServer], { cwd: repository }),
      stdio: { command: go, args: [] },
      legacyHTTP: (port) => new Child(go, ['-stateless=false', '-http', `127.0.0.1:${port}`]),
      modernHTTP: (port) => new Child(go, ['-http', `127.0.0.1:${port}`]),
    },
    everything: {
      about: 'the TypeScript everything server, which lacks most of what the suite looks for, and knows the older era only',
      prepare: () => {},
      stdio: { command: process.execPath, args: [tsServer] },
      legacyHTTP: everything,
    },
  };
}

/** Runs the suite against a URL. The result: for each scenario, how each check ended, and what it said. */
async function suite(url, revision, output) {
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
    const checks = join(output, entry, 'checks.json'); // a scenario that cannot even begin writes none
    if (existsSync(checks)) scenarios.set(name, JSON.parse(readFileSync(checks, 'utf8')));
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

/** Prints how the suite went against one server, adds the differences to seen, and returns how many checks were lost. */
function report(revision, server, runs, filters, seen) {
  console.log(`\n${revision}, ${server.about}`);
  const columns = Object.keys(runs);
  const names = [...new Set(Object.values(runs).flatMap((run) => [...run.keys()]))].filter((scenario) => filters.length === 0 || filters.some((filter) => scenario.includes(filter)));
  const row = (first, cells) => console.log(`  ${first.padEnd(48)}${cells.map((text) => text.padEnd(12)).join('')}`.trimEnd());
  row('', columns);
  const notes = [];
  const apart = new Map(); // what is meant to differ, by the reason
  let lost = 0;
  for (const scenario of names) {
    row(scenario, columns.map((way) => cell(runs[way].get(scenario))));
    if (!runs.direct) continue; // it does not speak this era: nothing to compare with
    const direct = runs.direct.get(scenario) ?? [];
    for (const way of columns.filter((one) => one !== 'direct')) {
      const through = runs[way].get(scenario) ?? [];
      for (const [id] of better(through, direct)) notes.push(`${way} ${scenario}: ${id} passes only through roundhouse`);
      for (const [id, said] of better(direct, through)) {
        const meant = differences.find((one) => (one.ways ?? columns).includes(way) && one.scenarios.includes(scenario) && (one.check ?? id) === id);
        if (meant && (meant.fails || !through.some((check) => check.id === id && failed(check)))) {
          seen.add(meant);
          apart.set(meant.why, [...(apart.get(meant.why) ?? []), `${way} ${scenario}: ${id}`]);
        } else {
          lost++;
          notes.push(`${way} ${scenario}: ${id} is LOST: ${said}`);
        }
      }
    }
  }
  row('scenarios passed', columns.map((way) => `${[...runs[way].values()].filter((checks) => !checks.some(failed)).length}/${runs[way].size}`));
  for (const note of notes) console.log(`  ${note}`);
  for (const [why, what] of apart) console.log(`  meant to differ, since ${why}:\n${what.map((one) => `    ${one}`).join('\n')}`);
  return lost;
}

/** Starts what a way needs at a server, and gives the URL of the server or the configuration for roundhouse. */
async function prepare(server, { face, settings }, undo) {
  if (face === 'stdio') return { ...server.stdio, ...settings };
  const port = await freePort();
  const child = server[face](port);
  undo.push(() => child.killAll());
  const url = `http://127.0.0.1:${port}/mcp`;
  await until(`${url} answers`, patience, () => fetch(url).then(({ body }) => (body?.cancel(), true), () => false));
  return { type: 'http', url, ...settings };
}

async function main(words) {
  const directory = realpathSync(mkdtempSync(join(tmpdir(), 'roundhouse-conformance-')));
  process.on('exit', () => rmSync(directory, { recursive: true, force: true }));
  const undo = [];
  try {
    const known = serversIn(directory);
    const chosen = (all) => Object.keys(all).filter((name) => words.includes(name) || !Object.keys(all).some((one) => words.includes(one)));
    const filters = words.filter((word) => !(word in known) && !(word in ways));
    const runs = [];
    for (const revision of chosen(ways)) {
      for (const name of chosen(known)) {
        for (const [way, how] of Object.entries(ways[revision])) if (known[name][how.face]) runs.push({ revision, name, way, how, id: `${name}-${way}-${revision}` });
      }
    }
    for (const name of chosen(known)) await known[name].prepare();

    // A process for each way: what one run changes in a server must not show in the next.
    for (const one of runs) one.configured = await prepare(known[one.name], one.how, undo);
    const servers = Object.fromEntries(runs.filter(({ way }) => way !== 'direct').map(({ id, configured }) => [id, configured]));
    // Connections stay between scenarios: the suite waits five seconds for some answers, and a busy machine may need them to start a server.
    const settings = { pool: { drainDelay: '1m' } };
    const daemon = await startDaemon({ after: (end) => undo.push(end), diagnostic: console.error }, { servers: () => servers, settings });

    let lost = 0;
    const seen = new Set();
    for (const revision of chosen(ways)) {
      for (const name of chosen(known)) {
        const results = {};
        for (const { way, id, configured } of runs.filter((one) => one.revision === revision && one.name === name)) {
          results[way] = await suite(way === 'direct' ? configured.url : daemon.mcp(id), revision, join(directory, id));
        }
        lost += report(revision, known[name], results, filters, seen);
      }
    }
    for (const { scenarios, why } of words.length === 0 ? differences.filter((one) => !seen.has(one)) : []) {
      console.log(`\nno longer different, so no longer to be listed: ${scenarios.join(', ')}: ${why}`);
      lost++;
    }
    console.log(lost ? `\n${lost} checks pass directly and not through roundhouse, or are listed although they do` : '\nall that passes directly passes through roundhouse');
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
