package dialect_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/dialect"
)

// A.10, C5: errors have the forms that the official clients raise on. That they do is
// checked with the clients themselves.
func TestFailuresAreNative(t *testing.T) {
	f := dialect.Failure{Status: 500, Code: "store_failed", Message: "the turn \"x\"\ncould not be stored"}
	message := `"the turn \"x\"\ncould not be stored"`
	openai := `{"error":{"message":` + message + `,"type":"internal_server_error","param":null,"code":"store_failed"},"object":"error","message":` + message + `,"type":"internal_server_error","param":null,"code":"store_failed"}`
	anthropic := `{"type":"error","error":{"type":"api_error","message":` + message + `}}`
	for api, want := range map[dialect.API]string{dialect.Chat: openai, dialect.Responses: openai, dialect.Messages: anthropic} {
		if got := string(f.Body(api)); got != want {
			t.Errorf("%s: %s", api, got)
		}
	}
	for api, want := range map[dialect.API]string{
		dialect.Chat:      "data: " + openai + "\n\n",
		dialect.Messages:  "event: error\ndata: " + anthropic + "\n\n",
		dialect.Responses: "event: error\ndata: {\"type\":\"error\",\"sequence_number\":8,\"code\":\"store_failed\",\"message\":" + message + ",\"param\":null,\"error\":{\"message\":" + message + ",\"type\":\"internal_server_error\",\"param\":null,\"code\":\"store_failed\"}}\n\n",
	} {
		s := dialect.Opaque(api, nil).Stream(dialect.Options{})
		s.Feed([]byte("data: {\"type\":\"response.in_progress\",\"sequence_number\":7}\n\n"))
		if got := string(s.Failure(f)); got != want {
			t.Errorf("%s: %s", api, got)
		}
	}
}

// C5, C12, C15: each status has the type that clients map to an exception of theirs,
// and tells whether to try again.
func TestFailuresSayWhetherToTryAgain(t *testing.T) {
	for _, c := range []struct {
		status            int
		openai, anthropic string
		again             bool
	}{
		{400, "invalid_request_error", "invalid_request_error", true},
		{401, "authentication_error", "authentication_error", true},
		{403, "permission_error", "permission_error", true},
		{404, "not_found_error", "not_found_error", true},
		{409, "conflict_error", "invalid_request_error", false},
		{410, "invalid_request_error", "invalid_request_error", false},
		{413, "invalid_request_error", "request_too_large", true},
		{429, "rate_limit_error", "rate_limit_error", true},
		{500, "internal_server_error", "api_error", true},
		{501, "not_implemented_error", "api_error", false},
		{502, "upstream_error", "api_error", true},
		{503, "internal_server_error", "overloaded_error", true},
		{504, "timeout_error", "timeout_error", true},
	} {
		f := dialect.Failure{Status: c.status, Message: "x"}
		var body struct {
			Error struct{ Type, Code string }
		}
		for api, want := range map[dialect.API]string{dialect.Chat: c.openai, dialect.Messages: c.anthropic} {
			if err := json.Unmarshal(f.Body(api), &body); err != nil || body.Error.Type != want {
				t.Errorf("%d, %s: %q, error %v", c.status, api, body.Error.Type, err)
			}
		}
		h := f.Header()
		if again := h.Get("x-should-retry") != "false"; again != c.again || h.Get("Retry-After") != "" || !strings.HasPrefix(h.Get("Content-Type"), "application/json") {
			t.Errorf("%d: %v", c.status, h)
		}
	}
	if got := (dialect.Failure{Status: http.StatusTooManyRequests, RetryAfter: 1500 * time.Millisecond}).Header().Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After: %s", got)
	}
}
