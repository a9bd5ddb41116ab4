-- Objects of the Responses API. They belong to their principal, and go with their session if they have one that is stored.
DROP TABLE responses;
CREATE TABLE responses (
  principal     TEXT NOT NULL,
  id            TEXT NOT NULL,
  session       INTEGER REFERENCES sessions (key), -- or NULL
  created       INTEGER NOT NULL,
  running       INTEGER NOT NULL, -- 1: it has not ended
  body_size     INTEGER NOT NULL,
  body_digest   BLOB,
  body          BLOB,
  events_size   INTEGER NOT NULL,
  events_digest BLOB,
  events        BLOB,
  PRIMARY KEY (principal, id)
) STRICT;
CREATE INDEX responses_created ON responses (created);
CREATE INDEX responses_session ON responses (session);
CREATE INDEX responses_running ON responses (running) WHERE running = 1;
CREATE INDEX responses_events ON responses (created) WHERE events_size > 0;

-- The requests for approval that were answered, each by one response.
CREATE TABLE approvals (
  principal TEXT NOT NULL,
  id        TEXT NOT NULL,
  response  TEXT NOT NULL,
  answered  INTEGER NOT NULL,
  PRIMARY KEY (principal, id)
) STRICT;
CREATE INDEX approvals_answered ON approvals (answered);
