package front_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/front"
)

// golden is the table "Errors" of the specification's defaults. Where that has no
// JSON-RPC code or no status, and for the reasons that it leaves to the
// protocols or does not have, the values are ours.
var golden = []struct {
	reason fault.Reason
	code   int
	status int
	retry  string // Retry-After when the fault names no time
}{
	{"unknown_session", -32001, 404, ""},
	{"unknown_server", -32001, 404, ""},
	{"unknown_turn", -32001, 404, ""},
	{"name_taken", -32002, 409, ""},
	{"session_sealed", -32002, 410, ""},
	{"session_limit", -32003, 429, "1"},
	{"task_limit", -32003, 429, "1"},
	{"instance_wait_timeout", -32003, 429, "1"},
	{"budget_exhausted", -32004, 429, ""},
	{"interrupted", -32010, 502, ""},
	{"start_failed", -32011, 502, ""},
	{"start_timeout", -32011, 504, ""},
	{"circuit_open", -32012, 503, "1"},
	{"needs_login", -32017, 502, ""},
	{"call_timeout", -32013, 504, ""},
	{"too_large", -32014, 413, ""},
	{"forbidden_tool", -32602, 404, ""},
	{"ambiguous_owner", -32015, 409, ""},
	{"draining", -32016, 503, "1"},
	{"unauthorized", -32000, 401, ""},
	{"forbidden_origin", -32000, 403, ""},
	{"bad_request", -32600, 400, ""},
	{"forbidden", -32000, 403, ""},
	{"internal", -32603, 500, ""},
}

// H3 and the table "Errors": every reason becomes the same answer everywhere.
func TestErrorsFollowTheTable(t *testing.T) {
	var reasons []fault.Reason
	for _, row := range golden {
		reasons = append(reasons, row.reason)
		err := fmt.Errorf("acquire: %w", &fault.Error{Reason: row.reason, Message: "because", Server: "files"})

		rec := httptest.NewRecorder()
		front.WriteError(rec, err)
		checkAnswer(t, rec.Result(), row.status, row.retry)
		if want := fmt.Sprintf(`{"error":{"message":"because","reason":"%s","server":"files"}}`, row.reason); rec.Body.String() != want {
			t.Errorf("body %s, want %s", rec.Body, want)
		}

		rec = httptest.NewRecorder()
		front.WriteRPCError(rec, 0, []byte(`"a"`), err)
		checkAnswer(t, rec.Result(), row.status, row.retry)
		var rpc struct {
			JSONRPC string
			ID      json.RawMessage
			Error   struct {
				Code    int
				Message string
				Data    struct {
					Reason fault.Reason
					Server string
				}
			}
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &rpc); err != nil {
			t.Fatal(err)
		}
		if e := rpc.Error; rpc.JSONRPC != "2.0" || string(rpc.ID) != `"a"` || e.Code != row.code || e.Message != "because" ||
			e.Data.Reason != row.reason || e.Data.Server != "files" {
			t.Errorf("%s: %s", row.reason, rec.Body)
		}
	}
	slices.Sort(reasons)
	if !slices.Equal(reasons, fault.Reasons()) {
		t.Errorf("the table has %v, the package %v", reasons, fault.Reasons())
	}
}

func checkAnswer(t *testing.T, res *http.Response, status int, retry string) {
	t.Helper()
	h := res.Header
	challenge := ""
	if status == 401 {
		challenge = "Bearer"
	}
	if res.StatusCode != status || h.Get("Retry-After") != retry || h.Get("WWW-Authenticate") != challenge ||
		h.Get("Content-Type") != "application/json" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%d %v, want %d, Retry-After %q", res.StatusCode, h, status, retry)
	}
}

func TestErrorsThatAreNoFaults(t *testing.T) {
	rec := httptest.NewRecorder()
	front.WriteError(rec, errors.New("disk full"))
	checkAnswer(t, rec.Result(), 500, "")
	rec = httptest.NewRecorder()
	front.WriteError(rec, fmt.Errorf("decode: %w", &http.MaxBytesError{Limit: 7}))
	checkAnswer(t, rec.Result(), 413, "")
}

// Retry-After is in whole seconds, never sooner than the fault says.
func TestRetryAfterIsRoundedUp(t *testing.T) {
	for after, want := range map[time.Duration]string{
		0: "", time.Nanosecond: "1", time.Second: "1", time.Second + 1: "2", time.Minute: "60",
	} {
		rec := httptest.NewRecorder()
		front.WriteError(rec, &fault.Error{Reason: fault.BudgetExhausted, RetryAfter: after})
		checkAnswer(t, rec.Result(), 429, want)
	}
}

func TestRPCErrorsTakeAStatusAndANullID(t *testing.T) {
	rec := httptest.NewRecorder()
	front.WriteRPCError(rec, 200, nil, fault.New(fault.UnknownServer, "no"))
	checkAnswer(t, rec.Result(), 200, "")
	var got map[string]json.RawMessage
	if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || string(got["id"]) != "null" {
		t.Errorf("%v %s", err, rec.Body)
	}
}

func TestWriteJSON(t *testing.T) {
	rec := httptest.NewRecorder()
	front.WriteJSON(rec, 201, map[string]int{"a": 1})
	checkAnswer(t, rec.Result(), 201, "")
	if rec.Body.String() != `{"a":1}` || rec.Header().Get("Content-Length") != "7" {
		t.Errorf("%s, Content-Length %q", rec.Body, rec.Header().Get("Content-Length"))
	}
	rec = httptest.NewRecorder()
	front.WriteJSON(rec, 200, func() {})
	checkAnswer(t, rec.Result(), 500, "")
}
