package dialect_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"roundhouse/internal/dialect"
)

func parseRequest(t *testing.T, api dialect.API, body string) *dialect.Request {
	t.Helper()
	r, err := dialect.ParseRequest(api, []byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

// A.3, C2: what is not consumed keeps its bytes.
func TestTheSessionIsSplicedOut(t *testing.T) {
	for _, c := range []struct{ body, session, sent string }{
		{`{"model":"m","session_id":"s","messages":[]}`, "s", `{"model":"m","messages":[]}`},
		{`{"session_id":"s","model":"m"}`, "s", `{"model":"m"}`},
		{`{ "model" : "m" , "session_id" : "s" }`, "s", `{ "model" : "m" }`},
		{`{"session_id":"s"}`, "s", `{}`},
		{" {\"session\\u005fid\": 12345678901234567890 ,\n \"n\": 1.0e3, \"t\": \"\\u5317\", \"t\": 1}\n", "12345678901234567890", " {\"n\": 1.0e3, \"t\": \"\\u5317\", \"t\": 1}\n"},
		{`{"session_id":-7}`, "-7", `{}`},
		{`{"a":1,"session_id":null}`, "", `{"a":1}`},
		{`{"a":{"session_id":"x"}}`, "", `{"a":{"session_id":"x"}}`},
	} {
		r := parseRequest(t, dialect.Chat, c.body)
		if got := string(r.Forward(dialect.Profile{}, true).Body); r.Session != c.session || got != c.sent {
			t.Errorf("%s: session %q, body %s", c.body, r.Session, got)
		}
		cut, session, err := dialect.CutSession([]byte(c.body))
		if string(cut) != c.sent || session != c.session || err != nil {
			t.Errorf("%s, auxiliary: session %q, body %s, error %v", c.body, session, cut, err)
		}
	}
}

// A.3, A.16 rows 6, 12: a body that is no object is left alone.
func TestOtherBodiesAreLeftAlone(t *testing.T) {
	for _, body := range []string{"", " ", "[]", `[{"session_id":"s"}]`, "null", "not-json", `{"session_id":"s"`, `{"session_id":"s"} x`, "{\"session_id\":\"\xff\"}", "\xef\xbb\xbf{}"} {
		if _, err := dialect.ParseRequest(dialect.Chat, []byte(body)); !errors.Is(err, dialect.ErrUnreadable) {
			t.Errorf("%q: %v", body, err)
		}
		if got := string(dialect.Opaque(dialect.Chat, []byte(body)).Body); got != body {
			t.Errorf("%q was sent as %q", body, got)
		}
		if cut, session, err := dialect.CutSession([]byte(body)); string(cut) != body || session != "" || err != nil {
			t.Errorf("%q, auxiliary: %q, session %q, error %v", body, cut, session, err)
		}
	}
}

// A.3, W2: a session that is none, and a member that could be read in two ways, are the
// client's fault.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	for _, c := range []struct {
		body      string
		auxiliary bool // whether it is refused there too
	}{
		{`{"session_id":""}`, true},
		{`{"session_id":1.5}`, true},
		{`{"session_id":1e3}`, true},
		{`{"session_id":{}}`, true},
		{`{"session_id":true}`, true},
		{`{"session_id":"\ud800"}`, true},
		{`{"session_id":"a","session_id":"b"}`, true},
		{`{"session_id":"a","session\u005fid":"a"}`, true},
		{`{"Session_ID":"a"}`, true},
		{`{"ſession_id":"a"}`, true},
		{`{"model":"a","model":"b"}`, false},
		{`{"Model":"a"}`, false},
		{`{"stream":false,"Stream":true}`, false},
		{`{"logprobs":false,"logprobs":true}`, false},
	} {
		if r, err := dialect.ParseRequest(dialect.Chat, []byte(c.body)); err == nil || errors.Is(err, dialect.ErrUnreadable) {
			t.Errorf("%s: %+v, error %v", c.body, r, err)
		}
		if _, _, err := dialect.CutSession([]byte(c.body)); (err != nil) != c.auxiliary {
			t.Errorf("%s, auxiliary: error %v", c.body, err)
		}
	}
}

// A.4: return_token_ids is read as generously as the reference reads it.
func TestTokenIDsAreRefusedByWhatIsFalse(t *testing.T) {
	for value, refused := range map[string]bool{
		"null": false, "true": false, "1": false, `"none"`: false, `"null"`: false, `"yes"`: false, "[0]": false, `{"a":1}`: false, "0.1": false, "1e0": false,
		"false": true, "0": true, "0.0": true, "-0e7": true, `""`: true, `" "`: true, `"0"`: true, `"False"`: true, `" no "`: true, `"OFF"`: true, "[]": true, "{ }": true,
	} {
		if r := parseRequest(t, dialect.Chat, `{"return_token_ids":`+value+`}`); r.NoTokens != refused {
			t.Errorf("%s: %v", value, r.NoTokens)
		}
	}
	if parseRequest(t, dialect.Chat, `{}`).NoTokens {
		t.Error("absent: refused")
	}
}

func TestWhatRoutesIsRead(t *testing.T) {
	r := parseRequest(t, dialect.Responses, `{"model":"a\u0062","stream":true,"tools":[{"type":"function","name":"f"},{"type":"mcp"}]}`)
	if r.Model != "ab" || !r.Stream || !r.HasMCPTool {
		t.Errorf("%+v", r)
	}
	r = parseRequest(t, dialect.Responses, `{"model":7,"stream":null,"tools":[{"type":"function","name":"mcp"}, 1, null]}`)
	if r.Model != "" || r.Stream || r.HasMCPTool {
		t.Errorf("%+v", r)
	}
}

// C10: what each engine is asked for.
func TestEnginesAreAskedForTokens(t *testing.T) {
	experts := dialect.Profile{Engine: dialect.LMDeploy, EndOfText: "</s>", Experts: true}
	for name, c := range map[string]struct {
		api        dialect.API
		profile    dialect.Profile
		body, sent string
	}{
		"no profile":                        {dialect.Chat, dialect.Profile{}, `{"a":1}`, `{"a":1}`},
		"openai":                            {dialect.Chat, dialect.Profile{Engine: dialect.OpenAI}, `{"a":1,"return_token_ids":true}`, `{"a":1}`},
		"anthropic":                         {dialect.Messages, dialect.Profile{Engine: dialect.Anthropic}, `{"return_token_ids":true,"tools":[{"type":"web_search"}]}`, `{"tools":[{"type":"web_search"}]}`},
		"vllm":                              {dialect.Chat, dialect.Profile{Engine: dialect.VLLM}, `{"a":1}`, `{"a":1,"logprobs":true,"return_token_ids":true}`},
		"vllm, empty":                       {dialect.Chat, dialect.Profile{Engine: dialect.VLLM}, "{ \n}", "{\"logprobs\":true,\"return_token_ids\":true \n}"},
		"vllm, session only":                {dialect.Chat, dialect.Profile{Engine: dialect.VLLM}, `{"session_id":"s"}`, `{"logprobs":true,"return_token_ids":true}`},
		"vllm, asked":                       {dialect.Chat, dialect.Profile{Engine: dialect.VLLM}, `{"return_token_ids":true,"logprobs":true,"top_logprobs":5}`, `{"return_token_ids":true,"logprobs":true,"top_logprobs":5}`},
		"vllm, refused":                     {dialect.Chat, dialect.Profile{Engine: dialect.VLLM}, `{"logprobs" : null, "return_token_ids":false}`, `{"logprobs" : true, "return_token_ids":true}`},
		"vllm, messages":                    {dialect.Messages, dialect.Profile{Engine: dialect.VLLM}, `{"a":1}`, `{"a":1}`},
		"vllm, responses":                   {dialect.Responses, dialect.Profile{Engine: dialect.VLLM}, `{"a":1}`, `{"a":1}`},
		"vllm, stream":                      {dialect.Chat, dialect.Profile{Engine: dialect.VLLM}, `{"stream":true}`, `{"stream":true,"logprobs":true,"return_token_ids":true,"stream_options":{"include_usage":true}}`},
		"vllm, stream with options":         {dialect.Chat, dialect.Profile{Engine: dialect.VLLM}, `{"stream_options":{"x":1.0,"include_usage":false},"stream":true}`, `{"stream_options":{"x":1.0,"include_usage":true},"stream":true,"logprobs":true,"return_token_ids":true}`},
		"vllm, stream with null options":    {dialect.Chat, dialect.Profile{Engine: dialect.VLLM}, `{"stream_options":null,"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true,"logprobs":true,"return_token_ids":true}`},
		"vllm, stream that counts":          {dialect.Chat, dialect.Profile{Engine: dialect.VLLM}, `{"stream_options":{"include_usage":true},"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true,"logprobs":true,"return_token_ids":true}`},
		"sglang":                            {dialect.Chat, dialect.Profile{Engine: dialect.SGLang}, `{"a":1}`, `{"a":1,"logprobs":true,"return_meta_info":true,"return_prompt_token_ids":true,"return_token_ids":true}`},
		"sglang, stream":                    {dialect.Chat, dialect.Profile{Engine: dialect.SGLang}, `{"stream":true}`, `{"stream":true}`},
		"lmdeploy":                          {dialect.Chat, experts, `{"a":1}`, `{"a":1,"include_stop_str_in_output":true,"return_logprob":true,"return_routed_experts":true,"return_token_ids":true}`},
		"lmdeploy, messages":                {dialect.Messages, dialect.Profile{Engine: dialect.LMDeploy}, `{"a":1}`, `{"a":1,"return_logprob":true,"return_token_ids":true}`},
		"llamacpp":                          {dialect.Chat, dialect.Profile{Engine: dialect.LlamaCpp}, `{"stream":true,"tools":[]}`, `{"stream":true,"tools":[],"n_probs":1,"stream_options":{"include_usage":true}}`},
		"llamacpp, stream with tools":       {dialect.Chat, dialect.Profile{Engine: dialect.LlamaCpp}, `{"stream":true,"tools":[{}]}`, `{"stream":true,"tools":[{}],"n_probs":1,"stream_options":{"include_usage":true}}`},
		"llamacpp, asked its own way":       {dialect.Chat, dialect.Profile{Engine: dialect.LlamaCpp}, `{"n_probs":3}`, `{"n_probs":3}`},
		"llamacpp, asked":                   {dialect.Chat, dialect.Profile{Engine: dialect.LlamaCpp}, `{"logprobs":true}`, `{"logprobs":true}`},
		"server tools":                      {dialect.Messages, dialect.Profile{Engine: dialect.SGLang}, `{"tools":[{"type":"web_search"},{"name":"f","input_schema":{}} , {"type":"bash"}],"tool_choice":{}}`, `{"tools":[{"name":"f","input_schema":{}}],"tool_choice":{}}`},
		"server tools first and in between": {dialect.Messages, dialect.Profile{Engine: dialect.SGLang}, `{"tools":[ {"name":"f","input_schema":{}}, {"type":"bash"},{"input_schema":null}, {"name":"g","input_schema":{}} ]}`, `{"tools":[ {"name":"f","input_schema":{}}, {"name":"g","input_schema":{}} ]}`},
		"only server tools":                 {dialect.Messages, dialect.Profile{Engine: dialect.VLLM}, `{"tools":[{"type":"web_search"}],"tool_choice":{"type":"any"},"a":1}`, `{"a":1}`},
		"no tools":                          {dialect.Messages, dialect.Profile{Engine: dialect.VLLM}, `{"tools":[]}`, `{"tools":[]}`},
	} {
		r := parseRequest(t, c.api, c.body)
		if got := string(r.Forward(c.profile, true).Body); got != c.sent {
			t.Errorf("%s: %s", name, got)
		}
	}
	// Without tokens nothing is injected.
	if got := string(parseRequest(t, dialect.Chat, `{"a":1}`).Forward(experts, false).Body); got != `{"a":1}` {
		t.Errorf("without tokens: %s", got)
	}
}

// A.6, A.16 rows 1, 15, 18 to 20: answers that are no streams.
func TestWholeAnswers(t *testing.T) {
	const choice = `"message":{"role":"assistant","content":"Hi</s>"},"finish_reason":"stop"`
	vllm := dialect.Profile{Engine: dialect.VLLM, EndOfText: "</s>"}
	for name, c := range map[string]struct {
		api     dialect.API
		profile dialect.Profile
		request string
		body    string
		outcome dialect.Outcome
		flags   string
		tail    string
		release bool
	}{
		"vllm": {dialect.Chat, vllm, `{}`,
			`{ "choices": [ {"index":0,` + choice + `, "logprobs":{"content":[{"token":"x","logprob":-1}]}, "token_ids":[5]} ], "prompt_token_ids":[1] }`,
			dialect.Complete, "", `{ "choices": [ {"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"} ] }`, true},
		"sglang": {dialect.Chat, dialect.Profile{Engine: dialect.SGLang}, `{}`,
			`{"choices":[{` + choice + `,"prompt_token_ids":[1],"meta_info":{"output_token_logprobs":[[-0.5,7,"x"]]}}],"usage":{"completion_tokens":1}}`,
			dialect.Complete, "", `{"choices":[{` + choice + `}],"usage":{"completion_tokens":1}}`, true},
		"sglang, experts": {dialect.Chat, dialect.Profile{Engine: dialect.SGLang, Experts: true}, `{}`,
			`{"choices":[{` + choice + `,"token_ids":[7]}],"sglext":{"routed_experts":"AAE=","cached_tokens_details":{"device":1}}}`,
			dialect.Complete, "no_prompt_ids", `{"choices":[{` + choice + `}],"sglext":{"cached_tokens_details":{"device":1}}}`, true},
		"sglang, experts alone": {dialect.Chat, dialect.Profile{Engine: dialect.SGLang, Experts: true}, `{}`,
			`{"sglext":{"routed_experts":"AAE="},"choices":[{` + choice + `,"token_ids":[7]}]}`,
			dialect.Complete, "no_prompt_ids", `{"choices":[{` + choice + `}]}`, true},
		"sglang, prompt asked": {dialect.Chat, dialect.Profile{Engine: dialect.SGLang}, `{"return_prompt_token_ids":true}`,
			`{"choices":[{` + choice + `,"prompt_token_ids":[1],"token_ids":[7]}]}`,
			dialect.Complete, "", `{"choices":[{` + choice + `,"prompt_token_ids":[1]}]}`, true},
		"unknown members stay": {dialect.Chat, dialect.Profile{}, `{}`, `{"choices":[{` + choice + `,"token_ids":[5]}],"x":1.50}`, dialect.Complete, "no_prompt_ids", `{"choices":[{` + choice + `,"token_ids":[5]}],"x":1.50}`, true},
		"no tokens":            {dialect.Chat, vllm, `{}`, `{"choices":[{"message":{},"finish_reason":"stop"}]}`, dialect.Complete, "no_tokens", `{"choices":[{"message":{},"finish_reason":"stop"}]}`, true},
		"mismatch":             {dialect.Chat, vllm, `{}`, `{"choices":[{"message":{},"finish_reason":"stop","token_ids":[5],"logprobs":{"content":[]}}],"usage":{"completion_tokens":2}}`, dialect.Complete, "empty token_mismatch", `{"choices":[{"message":{},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}`, true},
		"no id":                {dialect.Chat, vllm, `{}`, `{"choices":[{"message":{},"finish_reason":"stop","token_ids":[null]}]}`, dialect.Complete, "token_mismatch", `{"choices":[{"message":{},"finish_reason":"stop"}]}`, true},
		"error":                {dialect.Chat, vllm, `{}`, `{"error":{"message":"x"},"token_ids":[1],"m":"</s>"}`, dialect.UpstreamError, "", `{"error":{"message":"x"},"token_ids":[1],"m":"</s>"}`, true},
		"flat error":           {dialect.Chat, vllm, `{}`, `{"message":"x","object":"error"}`, dialect.UpstreamError, "", `{"message":"x","object":"error"}`, true},
		"not JSON":             {dialect.Chat, vllm, `{}`, `not-json`, dialect.Unparsed, "", `not-json`, false},
		"an array":             {dialect.Chat, vllm, `{}`, `[]`, dialect.Unparsed, "", `[]`, false},
		"nothing":              {dialect.Chat, vllm, `{}`, ``, dialect.Unparsed, "", ``, false},
		"no choices":           {dialect.Chat, dialect.Profile{}, `{}`, `{}`, dialect.Unparsed, "", `{}`, false},
		"no message":           {dialect.Chat, dialect.Profile{}, `{}`, `{"choices":[{"finish_reason":"stop"}]}`, dialect.Unparsed, "", `{"choices":[{"finish_reason":"stop"}]}`, false},
		"unclean":              {dialect.Chat, vllm, `{}`, `{"choices":{"token_ids":[1]}}`, dialect.Unparsed, "no_tokens", ``, false},
		"finish error":         {dialect.Chat, dialect.Profile{}, `{}`, `{"choices":[{"message":{},"finish_reason":"error"}]}`, dialect.UpstreamError, "", `{"choices":[{"message":{},"finish_reason":"error"}]}`, false},
		"bad arguments":        {dialect.Chat, dialect.Profile{}, `{}`, `{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":"{"}}]},"finish_reason":"tool_calls"}]}`, dialect.Complete, "bad_tool_json", `{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":"{"}}]},"finish_reason":"tool_calls"}]}`, true},
		"message": {dialect.Messages, dialect.Profile{Engine: dialect.LMDeploy, EndOfText: "</s>"}, `{}`,
			`{"type":"message","content":[{"type":"text","text":"a</s>"},{"type":"text","text":"</"}],"stop_reason":"end_turn","output_ids":[3],"output_token_logprobs":[[-1,3]]}`,
			dialect.Complete, "no_prompt_ids", `{"type":"message","content":[{"type":"text","text":"a"},{"type":"text","text":"</"}],"stop_reason":"end_turn"}`, true},
		"message error":     {dialect.Messages, dialect.Profile{}, `{}`, `{"type":"error","error":{"type":"x","message":"y"}}`, dialect.UpstreamError, "", `{"type":"error","error":{"type":"x","message":"y"}}`, true},
		"no content":        {dialect.Messages, dialect.Profile{}, `{}`, `{"type":"message","stop_reason":"end_turn"}`, dialect.Unparsed, "", `{"type":"message","stop_reason":"end_turn"}`, false},
		"stop sequence":     {dialect.Messages, dialect.Profile{}, `{}`, `{"content":[],"stop_reason":"stop_sequence","stop_sequence":null}`, dialect.UpstreamError, "", `{"content":[],"stop_reason":"stop_sequence","stop_sequence":null}`, false},
		"response":          {dialect.Responses, dialect.Profile{}, `{}`, `{"object":"response","status":"completed","error":null,"output":[{}]}`, dialect.Complete, "", `{"object":"response","status":"completed","error":null,"output":[{}]}`, true},
		"response, later":   {dialect.Responses, dialect.Profile{}, `{}`, `{"object":"response","status":"queued","output":[]}`, dialect.UpstreamCut, "background", `{"object":"response","status":"queued","output":[]}`, true},
		"response, filter":  {dialect.Responses, dialect.Profile{}, `{}`, `{"status":"incomplete","incomplete_details":{"reason":"content_filter"},"output":[]}`, dialect.Truncated, "content_filter", `{"status":"incomplete","incomplete_details":{"reason":"content_filter"},"output":[]}`, true},
		"response, failed":  {dialect.Responses, dialect.Profile{}, `{}`, `{"status":"failed","error":{"code":"x"},"output":[]}`, dialect.UpstreamError, "", `{"status":"failed","error":{"code":"x"},"output":[]}`, true},
		"response, no list": {dialect.Responses, dialect.Profile{}, `{}`, `{"status":"completed"}`, dialect.Unparsed, "", `{"status":"completed"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			call := parseRequest(t, c.api, c.request).Forward(c.profile, true)
			r := call.Whole([]byte(c.body), dialect.Options{})
			if r.Outcome != c.outcome || strings.Join(r.Flags, " ") != c.flags || string(r.Tail) != c.tail || r.Release != c.release || r.Abort {
				t.Errorf("got %+v\ntail %s", r, r.Tail)
			}
			if (r.Outcome == dialect.Complete) != (r.Reason == "") {
				t.Errorf("the reason is %q", r.Reason)
			}
			// Observers let through what need not be stripped, and nothing else.
			lenient := call.Whole([]byte(c.body), dialect.Options{Lenient: true})
			injected := !bytes.Equal(call.Body, []byte(c.request))
			if lenient.Outcome != r.Outcome || !lenient.Release && !(injected && r.Outcome == dialect.Unparsed) {
				t.Errorf("lenient: %+v", lenient)
			}
		})
	}
}

func TestTokensAreAsTheEngineToldThem(t *testing.T) {
	call := parseRequest(t, dialect.Chat, `{}`).Forward(dialect.Profile{Engine: dialect.VLLM}, true)
	r := call.Whole([]byte(`{"prompt_token_ids":[1,2],"choices":[{"message":{},"finish_reason":"stop","token_ids":[3,2147483647],"logprobs":{"content":[{"logprob":-0.1},{"logprob":-1e-7}]}}]}`), dialect.Options{})
	got, _ := json.Marshal(r.Tokens)
	if string(got) != `[{"Prompt":[1,2],"Output":[3,2147483647],"Logprobs":[-0.1,-1e-7]}]` {
		t.Errorf("%s", got)
	}
	for _, bad := range []string{"[2147483648]", "[-1]", "[1.5]", `["1"]`, "{}", "7"} {
		r := call.Whole([]byte(`{"choices":[{"message":{},"finish_reason":"stop","token_ids":`+bad+`}]}`), dialect.Options{})
		if r.Tokens != nil || len(r.Flags) != 1 || r.Flags[0] != dialect.FlagTokenMismatch {
			t.Errorf("%s: %+v", bad, r)
		}
	}
	// Case 71: nothing is padded or guessed.
	for _, bad := range []string{
		`"token_ids":[1,2],"logprobs":{"content":[{"logprob":-1}]}`,
		`"token_ids":[1],"logprobs":{"content":[{"logprob":null}]}`,
		`"token_ids":[1],"output_ids":[2]`,
		`"logprobs":{"content":[{"id":1,"logprob":-1},{"logprob":-1}]}`,
		`"logprobs":{"content":[{"token":"token_id:1","logprob":-1},{"token":"token_id:x","logprob":-1}]}`,
		`"output_token_logprobs":[[-1]]`,
		`"output_token_logprobs":[["-1",1]]`,
	} {
		r := call.Whole([]byte(`{"choices":[{"message":{},"finish_reason":"stop",`+bad+`}]}`), dialect.Options{})
		if r.Tokens != nil || len(r.Flags) != 1 || r.Flags[0] != dialect.FlagTokenMismatch {
			t.Errorf("%s: %+v", bad, r)
		}
	}
}
