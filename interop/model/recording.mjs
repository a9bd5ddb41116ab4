// A daemon that records, and what it has recorded, by its own API.

import { patience, startDaemon, until } from '../js/launch.mjs';

/**
 * Starts a daemon in front of the engine at url. policy, engine and responses are of its upstream, servers as for startDaemon, none if absent.
 * Returns {daemon, base(session), turns(session), …}, of which the comments say more.
 */
export async function startRecorder(t, url, { policy = 'train', engine, responses = true, servers = () => ({}) } = {}) {
  const upstreams = { scripted: { baseURL: url, policy, engine, responses } };
  const daemon = await startDaemon(t, { servers, settings: { llm: { upstreams } } });
  const api = async (path, options) => {
    const answer = await fetch(new URL(`/api/v1${path}`, daemon.url), options);
    const text = await answer.text();
    if (!answer.ok) throw Object.assign(new Error(`${path}: ${answer.status} ${text}`), { status: answer.status });
    return text;
  };
  const json = async (...args) => JSON.parse(await api(...args));
  return {
    daemon,
    /** The URL that the clients of a session get. */
    base: (session) => `${daemon.url}/sessions/${session}`,
    /** The rows of a session's calls, without bodies; none if nothing is recorded. */
    async turns(session) {
      try {
        return (await json(`/sessions/${session}/turns`)).turns;
      } catch (error) {
        if (error.status === 404) return [];
        throw error;
      }
    },
    /** One call with everything. */
    turn: (id) => json(`/turns/${id}`),
    check: (session) => json(`/sessions/${session}/check`),
    seal: (session) => json(`/sessions/${session}/seal`, { method: 'POST' }),
    /** The rows of an export. */
    async export(session, format) {
      const text = await api(`/export?format=${format}&session=${session}`);
      return text.split('\n').filter(Boolean).map((line) => JSON.parse(line));
    },
  };
}

/** The rows of a session's calls, when there are so many and all have ended. */
export function recorded(recorder, session, count) {
  return until(`${count} calls are recorded`, patience, async () => {
    const turns = await recorder.turns(session);
    return turns.length === count && turns.every(({ outcome, delivered }) => outcome && delivered !== 'pending') && turns;
  });
}
