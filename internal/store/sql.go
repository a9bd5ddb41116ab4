package store

import "strings"

// Every statement of the store, but for the conditions of filters. What may be stored
// already is looked up by its key first, so that a write can be repeated.
const (
	saveSession = `
INSERT INTO sessions (principal, id, incarnation, kind, workspace, state, created, last_activity, metadata, clients)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (principal, id, incarnation) WHERE deleted = 0 DO UPDATE SET
  kind = excluded.kind, workspace = excluded.workspace, state = excluded.state, created = excluded.created,
  last_activity = excluded.last_activity, metadata = excluded.metadata, clients = excluded.clients`
	findSession    = `SELECT key, sealed FROM sessions WHERE principal = ? AND id = ? AND incarnation = ? AND deleted = 0`
	markIncomplete = `UPDATE sessions SET incomplete = ? WHERE key = ? AND incomplete = ''`
	sealSession    = `UPDATE sessions SET sealed = ? WHERE key = ?`
	closeSession   = `UPDATE sessions SET state = 'closed' WHERE key = ?`
	selectSessions = `
SELECT s.key, s.principal, s.id, s.incarnation, s.kind, s.workspace, s.state, s.created, s.last_activity,
  s.metadata, s.clients, s.sealed, s.incomplete
FROM sessions s WHERE s.deleted = 0 AND s.key > ?`
	selectTurns = `
SELECT s.principal, s.id, s.incarnation, count(*)
FROM sessions s JOIN calls c ON c.session = s.key JOIN results r ON r.seq = c.seq AND r.outcome IN ('complete', 'truncated')
WHERE s.deleted = 0 AND s.key > ?`
	newestSession = selectSessions + ` AND s.principal = ? AND s.id = ? ORDER BY s.incarnation DESC LIMIT 1`

	forgetSessions = `
WITH empty AS (
  SELECT s.key, s.last_activity FROM sessions s WHERE s.state = 'closed' AND s.sealed = 0 AND s.deleted = 0
    AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.session = s.key)
    AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.session = s.key))
DELETE FROM sessions WHERE key IN (
  SELECT key FROM empty WHERE last_activity < ?1
  UNION SELECT key FROM (SELECT key FROM empty ORDER BY last_activity DESC, key DESC LIMIT -1 OFFSET ?2))`

	insertCall = `
INSERT INTO calls (session, id, attempt, api, endpoint, model, upstream, policy, stream, start, header,
  body_size, body_digest, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	insertUnfinished = `INSERT INTO unfinished (seq) VALUES (?)`
	deleteUnfinished = `DELETE FROM unfinished WHERE seq = ?`
	selectUnfinished = `SELECT u.seq FROM unfinished u JOIN calls c USING (seq) WHERE ?1 = 0 OR c.session = ?1`
	findCall         = `SELECT body_digest, start FROM calls WHERE session = ? AND id = ?`
	findCallOf       = `
SELECT c.seq, s.sealed FROM sessions s JOIN calls c ON c.session = s.key
WHERE s.principal = ? AND s.id = ? AND s.incarnation = ? AND s.deleted = 0 AND c.id = ?`

	insertResult = `
INSERT INTO results (seq, outcome, status, error, finish, weights, first, ended, flags, usage, header,
  raw_size, raw_digest, raw, response_size, response_digest, response, prompt_ids, output_ids, logprobs)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	findResult = `SELECT outcome, ended, raw_digest FROM results WHERE seq = ?`

	insertDelivery = `INSERT INTO deliveries (state, bytes, seq) VALUES (?, ?, ?)`
	updateDelivery = `UPDATE deliveries SET state = ?, bytes = ? WHERE seq = ?`
	findDelivery   = `SELECT state, bytes FROM deliveries WHERE seq = ?`

	callColumns = `
SELECT c.seq, s.principal, s.id, s.incarnation, c.id, c.attempt, c.api, c.endpoint, c.model, c.upstream, c.policy,
  c.stream, c.start, r.seq IS NOT NULL, coalesce(r.outcome, ''), coalesce(r.status, 0), coalesce(r.error, ''),
  coalesce(r.finish, ''), coalesce(r.weights, ''), coalesce(r.first, 0), coalesce(r.ended, 0), coalesce(r.flags, ''),
  r.usage, coalesce(d.state, 'pending'), coalesce(d.bytes, 0),
  c.body_size, c.body_digest, coalesce(r.raw_size, 0), r.raw_digest, coalesce(r.response_size, 0), r.response_digest`
	callContents = `,
  coalesce(c.header, ''), coalesce(r.header, ''), c.body, r.raw, r.response, r.prompt_ids, r.output_ids, r.logprobs`
	callTables = `
FROM calls c JOIN sessions s ON s.key = c.session
  LEFT JOIN results r ON r.seq = c.seq LEFT JOIN deliveries d ON d.seq = c.seq
WHERE s.deleted = 0 AND c.seq > ?`

	saveResponse = `
INSERT INTO responses (principal, id, session, created, running, body_size, body_digest, body, events_size, events_digest, events)
VALUES (?, ?, (SELECT key FROM sessions WHERE principal = ? AND id = ? AND deleted = 0 ORDER BY incarnation DESC LIMIT 1), ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (principal, id) DO UPDATE SET
  created = excluded.created, running = excluded.running, body_size = excluded.body_size, body_digest = excluded.body_digest, body = excluded.body,
  events_size = excluded.events_size, events_digest = excluded.events_digest, events = excluded.events`
	deleteResponse  = `DELETE FROM responses WHERE principal = ? AND id = ?`
	selectResponses = `
SELECT r.principal, r.id, coalesce(s.id, ''), r.created, r.running, r.body_size, r.body_digest, r.body, r.events_size, r.events_digest, r.events
FROM responses r LEFT JOIN sessions s ON s.key = r.session WHERE coalesce(s.deleted, 0) = 0`
	selectResponse = selectResponses + ` AND r.principal = ? AND r.id = ?`
	selectRunning  = selectResponses + ` AND r.running = 1 ORDER BY r.created LIMIT 100`
	dropEvents     = `
UPDATE responses SET events_size = 0, events_digest = NULL, events = NULL WHERE rowid IN
  (SELECT rowid FROM responses WHERE events_size > 0 AND running = 0 AND created < ? LIMIT ?)`
	dropResponses = `DELETE FROM responses WHERE rowid IN (SELECT rowid FROM responses WHERE running = 0 AND created < ? LIMIT ?)`
	newestBeyond  = `
SELECT created FROM (SELECT created, sum(coalesce(length(body), 0) + coalesce(length(events), 0)) OVER (ORDER BY created DESC) AS used FROM responses)
WHERE used > ? ORDER BY created DESC LIMIT 1`
	findApproval   = `SELECT response FROM approvals WHERE principal = ? AND id = ?`
	insertApproval = `INSERT INTO approvals (principal, id, response, answered) VALUES (?, ?, ?, ?)`
	forgetApproval = `DELETE FROM approvals WHERE principal = ? AND id = ? AND response = ?`
	dropApprovals  = `DELETE FROM approvals WHERE rowid IN (SELECT rowid FROM approvals WHERE answered < ? LIMIT ?)`

	hideSession = `UPDATE sessions SET deleted = 1 WHERE key = ?`
	hideIfStill = `
UPDATE sessions SET deleted = 1 WHERE key = ?1 AND deleted = 0 AND state IN ('', 'closed')
  AND ?2 = max(last_activity, coalesce((SELECT c.start FROM calls c WHERE c.session = ?1 ORDER BY c.seq DESC LIMIT 1), 0))`
	firstHidden = `SELECT key FROM sessions WHERE deleted = 1 ORDER BY key LIMIT 1`
	firstCalls  = `SELECT seq FROM calls WHERE session = ? ORDER BY seq LIMIT 100`
	oldestOver  = `
SELECT key, active, (SELECT (p.page_count - f.freelist_count) * z.page_size
  FROM pragma_page_count p, pragma_freelist_count f, pragma_page_size z)
FROM (SELECT s.key, s.state, s.sealed, max(s.last_activity,
    coalesce((SELECT c.start FROM calls c WHERE c.session = s.key ORDER BY c.seq DESC LIMIT 1), 0)) AS active
  FROM sessions s WHERE s.state IN ('', 'closed') AND s.deleted = 0)
WHERE state = 'closed' OR (sealed <> 0 OR active < ?)
  AND NOT EXISTS (SELECT 1 FROM unfinished u JOIN calls c USING (seq) WHERE c.session = key)
ORDER BY active, key LIMIT 1`
	pagesFree    = `PRAGMA freelist_count`
	reclaimPages = `PRAGMA incremental_vacuum(1000)`
)

// callRemovals take away the call with this number, in the order of the references;
// sessionRemovals the session with this key, when its calls are gone.
var (
	callRemovals = []string{
		deleteUnfinished,
		`DELETE FROM deliveries WHERE seq = ?`,
		`DELETE FROM results WHERE seq = ?`,
		`DELETE FROM calls WHERE seq = ?`,
	}
	sessionRemovals = []string{
		`DELETE FROM responses WHERE session = ?`,
		`DELETE FROM sessions WHERE key = ?`,
	}
)

// marks is a list of n parameters.
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

func anys[T ~string](values []T) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}
