// Package event keeps what happened lately, for those who follow it live.
package event

import "time"

// Kind says what happened. The words are part of the API.
type Kind string

// What happens to a connection (section 9 of the pool specification).
const (
	ConnectionOpened     Kind = "connection_opened"
	ConnectionDraining   Kind = "connection_draining"   // no session uses it; it closes when its drain delay is over
	ConnectionResumed    Kind = "connection_resumed"    // a session uses it again
	ConnectionRecovering Kind = "connection_recovering" // it is being dialled again, after a loss or for a restart
	ConnectionRecovered  Kind = "connection_recovered"  // after a loss
	ConnectionRestarted  Kind = "connection_restarted"  // because somebody wanted that
	ConnectionFailed     Kind = "connection_failed"
	ConnectionClosed     Kind = "connection_closed"
	RestartRefused       Kind = "restart_refused"
	CatalogueChanged     Kind = "catalogue_changed"
)

// What happens to the budget.
const (
	BudgetWarning Kind = "budget_warning" // three quarters are held
	BudgetRefused Kind = "budget_refused" // one or more servers were refused at about the same time
)

// What happens to the configuration.
const (
	ConfigReloaded Kind = "config_reloaded"
	ReloadRefused  Kind = "reload_refused" // the file is broken; what was read before stays
)

// What happens to a session.
const (
	SessionBegun   Kind = "session_begun"
	SessionDormant Kind = "session_dormant"
	SessionResumed Kind = "session_resumed" // a dormant one is active again
	SessionEnded   Kind = "session_ended"
	ServerInjected Kind = "server_injected" // the session has a server more, of its own
	ServerRemoved  Kind = "server_removed"  // that is gone again
	SessionCleanup Kind = "session_cleanup" // a server was told, or was not, that the session has used it for the last time
)

// TurnRecorded is a model call that has ended, and is stored, unless its outcome is
// store_failed.
const TurnRecorded Kind = "turn_recorded"

// ToolCalled is a tool's call that roundhouse has made for a response or a task.
const ToolCalled Kind = "tool_called"

// EventsLost takes the place of events that a follower has missed.
const EventsLost Kind = "events_lost"

// Event is one thing that happened. Which of the further members it has depends on
// its kind; they hold no secrets. It is read-only once it was published.
type Event struct {
	ID   uint64    `json:"-"` // from 1; given by the Feed
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`

	// Principal is whose session it is, or whose sessions alone can use the connection;
	// "" is nobody's in particular.
	Principal string `json:"principal,omitempty"`
	Session   string `json:"session,omitempty"`

	Turn    string `json:"turn,omitempty"`    // the id of a recorded model call
	Tool    string `json:"tool,omitempty"`    // that was called
	Outcome string `json:"outcome,omitempty"` // what became of it: of a tool's call completed, failed or incomplete; of a clean-up ok, failed, timeout or skipped

	Server     string   `json:"server,omitempty"`
	Connection string   `json:"connection,omitempty"`
	EntryIndex *int     `json:"entryIndex,omitempty"`
	Generation uint64   `json:"generation,omitempty"`
	Lists      []string `json:"lists,omitempty"`      // that differ from before
	DurationMs *int64   `json:"durationMs,omitempty"` // of a restart
	Reason     string   `json:"reason,omitempty"`     // why, for people
	Refused    []string `json:"refused,omitempty"`    // servers that are over the budget
	Added      []string `json:"added,omitempty"`      // servers
	Changed    []string `json:"changed,omitempty"`    // servers
	Removed    []string `json:"removed,omitempty"`    // servers
	Lost       uint64   `json:"lost,omitempty"`       // events, anybody's; 0 is an unknown number
}
