-- Times are nanoseconds since 1970; a body has three columns: size, SHA-256, zstd.

CREATE TABLE sessions (
  key           INTEGER PRIMARY KEY AUTOINCREMENT, -- never given twice: exports resume after it
  principal     TEXT NOT NULL,
  id            TEXT NOT NULL,
  incarnation   INTEGER NOT NULL,
  kind          TEXT NOT NULL DEFAULT '',
  workspace     TEXT NOT NULL DEFAULT '',
  state         TEXT NOT NULL DEFAULT '',
  created       INTEGER NOT NULL,
  last_activity INTEGER NOT NULL,
  metadata      TEXT,
  clients       TEXT,
  sealed        INTEGER NOT NULL DEFAULT 0, -- when; 0 is not
  incomplete    TEXT NOT NULL DEFAULT '',   -- what is missing from its recording, or ''
  deleted       INTEGER NOT NULL DEFAULT 0  -- 1: being deleted, invisible
) STRICT;
CREATE UNIQUE INDEX sessions_name ON sessions (principal, id, incarnation) WHERE deleted = 0;
CREATE INDEX sessions_deleted ON sessions (key) WHERE deleted = 1;

-- The log: one row for each attempt, written once.
CREATE TABLE calls (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of the intents; never given twice
  session      INTEGER NOT NULL REFERENCES sessions (key),
  id           TEXT NOT NULL,
  attempt      INTEGER NOT NULL,
  api          TEXT NOT NULL,
  endpoint     TEXT NOT NULL,
  model        TEXT NOT NULL,
  upstream     TEXT NOT NULL,
  policy       TEXT NOT NULL,
  stream       INTEGER NOT NULL,
  start        INTEGER NOT NULL,
  header       TEXT,
  body_size    INTEGER NOT NULL,
  body_digest  BLOB,
  body         BLOB
) STRICT;
CREATE UNIQUE INDEX calls_id ON calls (session, id);
CREATE INDEX calls_session ON calls (session, seq);
CREATE INDEX calls_body ON calls (session, body_digest);

-- What became of a call, written once.
CREATE TABLE results (
  seq             INTEGER PRIMARY KEY REFERENCES calls (seq),
  outcome         TEXT NOT NULL,
  status          INTEGER NOT NULL,
  error           TEXT NOT NULL,
  finish          TEXT NOT NULL,
  weights         TEXT NOT NULL,
  first           INTEGER NOT NULL,
  ended           INTEGER NOT NULL,
  flags           TEXT,
  usage           TEXT,
  header          TEXT,
  raw_size        INTEGER NOT NULL,
  raw_digest      BLOB,
  raw             BLOB,
  response_size   INTEGER NOT NULL,
  response_digest BLOB,
  response        BLOB,
  prompt_ids      BLOB,
  output_ids      BLOB,
  logprobs        BLOB
) STRICT;

-- The calls without a result, so that a start finds them at once.
CREATE TABLE unfinished (
  seq INTEGER PRIMARY KEY REFERENCES calls (seq)
) STRICT;

-- How much of it the client got; no row is 'pending'.
CREATE TABLE deliveries (
  seq   INTEGER PRIMARY KEY REFERENCES calls (seq),
  state TEXT NOT NULL,
  bytes INTEGER NOT NULL
) STRICT;

-- Objects of the Responses API.
CREATE TABLE responses (
  session     INTEGER NOT NULL REFERENCES sessions (key),
  id          TEXT NOT NULL,
  created     INTEGER NOT NULL,
  body_size   INTEGER NOT NULL,
  body_digest BLOB,
  body        BLOB,
  PRIMARY KEY (session, id)
) STRICT;
CREATE INDEX responses_id ON responses (id);
