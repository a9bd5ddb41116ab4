package config_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/secret"
)

// C12: upstreams keep the order of the file, since the first that serves a model gets
// its calls.
func TestUpstreams(t *testing.T) {
	c, err := parse(t, `{"llm": {"upstreams": {
		"z": {"baseURL": "https://${HOST}/v1/", "responses": false, "engine": "openai", "apiKey": "${KEY}", "headers": {"X-A": "${KEY}"}, "models": ["gpt-*"], "policy": "train"},
		"a": {"baseURL": "http://127.0.0.1:8000/api", "engine": "vllm", "experts": true, "images": false, "endOfText": "<eot>", "timeouts": {"idle": "5s", "total": "1h"}}
	}, "record": {"policy": "train", "unnamed": "observe", "clientGone": "drain", "retention": {"age": "720h", "size": "20GiB"}}}, "store": "sqlite:///var/db/x.db"}`,
		"HOST", "llm.example", "KEY", "key-0")
	if err != nil {
		t.Fatal(err)
	}
	key := secret.New("key-0")
	want := []*config.Upstream{{
		Name: "z", BaseURL: "https://llm.example", Engine: "openai", APIKey: key, Headers: map[string]secret.String{"X-A": key}, Models: []string{"gpt-*"}, Policy: config.RecordTrain, Images: true,
		Timeouts: config.UpstreamTimeouts{Connect: 10 * time.Second, FirstByte: 10 * time.Minute, Idle: 2 * time.Minute},
	}, {
		Name: "a", BaseURL: "http://127.0.0.1:8000/api", Engine: "vllm", Experts: true, EndOfText: "<eot>", Images: false,
		Timeouts: config.UpstreamTimeouts{Connect: 10 * time.Second, FirstByte: 10 * time.Minute, Idle: 5 * time.Second, Total: time.Hour},
	}}
	if !reflect.DeepEqual(c.LLM.Upstreams, want) {
		t.Errorf("got %+v, want %+v", c.LLM.Upstreams, want)
	}
	record := config.Record{Policy: config.RecordTrain, Unnamed: config.RecordObserve, ClientGone: config.ClientGoneDrain, Retention: config.Retention{Age: 720 * time.Hour, Size: 20 << 30}}
	if c.LLM.Record != record || c.Store != "/var/db/x.db" {
		t.Errorf("got %+v and %s", c.LLM.Record, c.Store)
	}
}

// What would have no effect, or leaves the choice of an upstream open, is an error.
func TestUpstreamsThatMakeNoSense(t *testing.T) {
	for text, want := range map[string]string{
		`{"llm": {}}`: "needs \"upstreams\"",
		`{"llm": {"upstreams": {"a": {"baseURL": "http://a.example"}, "b": {"baseURL": "http://b.example"}}}}`: "gets no request",
		`{"mcpServers": {}, "store": "x.db"}`:                                                      "has no effect without \"llm\"",
		`{"llm": {"upstreams": {"a": {"baseURL": "http://a.example"}}}, "store": "sqlite://x.db"}`: "absolute path",
	} {
		if _, err := parse(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// X9: the limits of responses, and how long their tool sessions are kept.
func TestLimitsOfResponses(t *testing.T) {
	c, err := parse(t, `{"llm": {"upstreams": {"a": {"baseURL": "http://a.example"}}, "responses": {
		"rounds": 5, "maxImages": 0, "callTimeout": "2m", "parallel": 1, "background": 2, "maxResult": "64KiB", "toolSessions": "request",
		"retention": {"age": "0s", "events": "1h", "size": "2GiB"}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Responses{Rounds: 5, CallTimeout: 2 * time.Minute, Parallel: 1, Background: 2, MaxResult: 64 << 10, ToolSessions: config.ToolSessionsRequest, Retention: config.ResponseRetention{Events: time.Hour, Size: 2 << 30}}
	if !reflect.DeepEqual(c.LLM.Responses, want) {
		t.Errorf("got %+v", c.LLM.Responses)
	}
	if _, err := parse(t, `{"llm": {"upstreams": {"a": {"baseURL": "http://a.example"}}, "responses": {"rounds": 0}}}`); err == nil {
		t.Error("no rounds are accepted")
	}
}
