package trace

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/store"
)

var (
	key   = store.SessionKey{Principal: "local", ID: "s", Incarnation: 1}
	start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// chat is a turn of chat completions: messages as "role:content" with "|" between.
func chat(id, messages, answer string) store.Call {
	return turnOf("chat", id, fmt.Sprintf(`{"messages":[%s]}`, chatMessages(messages)),
		fmt.Sprintf(`{"choices":[{"message":%s}]}`, chatMessages("assistant:"+answer)))
}

func chatMessages(list string) string {
	var out []string
	for m := range strings.SplitSeq(list, "|") {
		role, content, _ := strings.Cut(m, ":")
		thought, rest, ok := strings.Cut(content, "~") // "thought~content"
		if ok {
			out = append(out, fmt.Sprintf(`{"role":%q,"content":%q,"reasoning_content":%q}`, role, rest, thought))
		} else {
			out = append(out, fmt.Sprintf(`{"role":%q,"content":%q}`, role, content))
		}
	}
	return strings.Join(out, ",")
}

func turnOf(api, id, request, answer string) store.Call {
	return store.Call{
		Session: key, ID: id, Attempt: 1, API: api, Endpoint: "/v1/" + api, Model: "m", Policy: store.Train, Start: start,
		Request: store.Pack([]byte(request)),
		Result:  &store.Result{Outcome: store.Complete, Status: 200, Raw: store.Pack([]byte(answer)), End: start, Delivery: store.Full},
	}
}

func withTokens(c store.Call, prompt, output []int32) store.Call {
	c.Result.PromptIDs, c.Result.OutputIDs = prompt, output
	for range output {
		c.Result.Logprobs = append(c.Result.Logprobs, -0.5)
	}
	return c
}

func forestOf(t *testing.T, calls ...store.Call) *forest {
	t.Helper()
	f := newForest()
	f.verify = true
	for i, c := range calls {
		c.Position = int64(i + 1)
		if err := f.add(c); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.problems) > 0 {
		t.Errorf("problems: %v", f.problems)
	}
	return f
}

// shape is each turn's parent and why it does not simply go on from it.
func shape(f *forest) string {
	var out []string
	for _, t := range f.turns {
		text := t.call.ID
		if t.parent != none {
			text += "<" + f.turns[t.parent].call.ID
		}
		if t.split != nil {
			text += " " + string(t.split.Reason)
			if t.split.Near != "" {
				text += fmt.Sprintf("(%s %s %d)", t.split.Near, t.split.Unit, t.split.At)
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// J2, case 71: a turn goes on from the longest earlier one that begins it; a history
// that was rewritten starts a branch, with the reason.
func TestTurnsGoOnFromTheLongestEarlierOne(t *testing.T) {
	for _, test := range []struct {
		name  string
		calls []store.Call
		want  string
	}{
		{"a chain", []store.Call{
			chat("1", "system:s|user:a", "b"),
			chat("2", "system:s|user:a|assistant:b|user:c", "d"),
			chat("3", "system:s|user:a|assistant:b|user:c|assistant:d|user:e", "f"),
		}, "1, 2<1, 3<2"},
		{"a retry", []store.Call{
			chat("1", "user:a", "b"), chat("2", "user:a", "b2"), chat("3", "user:a|assistant:b2|user:c", "d"),
		}, "1, 2 retry(1 message 2), 3<2"},
		{"the same answer twice: the later one is gone on from", []store.Call{
			chat("1", "user:a", "b"), chat("2", "user:a", "b"), chat("3", "user:a|assistant:b|user:c", "d"),
		}, "1, 2 retry(1 message 2), 3<2"},
		{"a sub-agent", []store.Call{
			chat("1", "system:s|user:a", "b"), chat("2", "system:sub|user:do it", "done"), chat("3", "system:s|user:a|assistant:b|user:c", "d"),
		}, "1, 2 sub_agent(1 message 0), 3<1"},
		{"other tools in the middle", []store.Call{
			chat("1", "system:s|user:a", "b"), chat("2", "system:now|user:a|assistant:b|user:c", "d"),
		}, "1, 2 changed_head(1 message 0)"},
		{"compaction", []store.Call{
			chat("1", "system:s|user:a", "b"), chat("2", "system:s|user:a|assistant:b|user:c", "d"), chat("3", "system:s|user:summary", "e"),
		}, "1, 2<1, 3 compaction(2 message 1)"},
		{"compaction to more than the first turns", []store.Call{
			chat("1", "user:a", "b"), chat("2", "user:a|assistant:b|user:c", "d"), chat("3", "user:a|assistant:b|user:c|assistant:d|user:e", "f"),
			chat("4", "user:summary|assistant:yes|user:e", "g"),
		}, "1, 2<1, 3<2, 4 compaction(3 message 1)"},
		{"dropped thinking", []store.Call{
			chat("1", "user:a", "hm~b"), chat("2", "user:a|assistant:b|user:c", "d"),
		}, "1, 2 dropped_thinking(1 message 2)"},
		{"kept thinking", []store.Call{
			chat("1", "user:a", "hm~b"), chat("2", "user:a|assistant:hm~b|user:c", "d"),
		}, "1, 2<1"},
		{"an edited history", []store.Call{
			chat("1", "user:a", "b"), chat("2", "user:a|assistant:edited|user:c", "d"),
		}, "1, 2 divergence(1 message 2)"},
		{"another branch", []store.Call{
			chat("1", "user:a", "b"), chat("2", "user:a|assistant:b|user:c", "d"), chat("3", "user:a|assistant:b|user:x", "y"),
		}, "1, 2<1, 3<1 divergence(2 message 3)"},
		{"tokens decide where both have them", []store.Call{
			withTokens(chat("1", "user:a", "b"), []int32{1}, []int32{2}),
			withTokens(chat("2", "user:a|assistant:other words|user:c", "d"), []int32{1, 2, 3}, []int32{4}),
		}, "1, 2<1"},
		{"the same words in other tokens", []store.Call{
			withTokens(chat("1", "user:a", "b"), []int32{1}, []int32{2, 3}),
			withTokens(chat("2", "user:a|assistant:b|user:c", "d"), []int32{1, 23, 4}, []int32{5}),
		}, "1, 2 retokenised(1 token 1)"},
		{"tokens for some", []store.Call{
			withTokens(chat("1", "user:a", "b"), []int32{1}, []int32{2}),
			chat("2", "user:a|assistant:b|user:c", "d"),
			withTokens(chat("3", "user:a|assistant:b|user:c|assistant:d|user:e", "f"), []int32{1, 2, 3, 4, 5}, []int32{6}),
		}, "1, 2<1, 3<2"},
		{"tokens for some, of which the longer one has them", []store.Call{
			chat("1", "user:a", "b"),
			withTokens(chat("2", "user:a|assistant:b|user:c", "d"), []int32{1, 2, 3}, []int32{4}),
			withTokens(chat("3", "user:a|assistant:b|user:c|assistant:other words|user:e", "f"), []int32{1, 2, 3, 4, 5}, []int32{6}),
		}, "1, 2<1, 3<2"},
		{"not JSON", []store.Call{
			chat("1", "user:a", "b"), turnOf("chat", "2", "no", "no"),
		}, "1, 2 unreadable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := shape(forestOf(t, test.calls...)); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// J2: only whole turns are gone on from; of two with the same content, the one that
// the client certainly got.
func TestOnlyWholeTurnsAreGoneOnFrom(t *testing.T) {
	failed := chat("1", "user:a", "b")
	failed.Result.Outcome = store.UpstreamCut
	got, lost := chat("2", "user:a", "b"), chat("3", "user:a", "b")
	lost.Result.Delivery = store.None
	f := forestOf(t, failed, got, lost, chat("4", "user:a|assistant:b|user:c", "d"))
	if got := shape(f); got != "2, 3 retry(2 message 2), 4<2" {
		t.Errorf("got %s", got)
	}
}

// several is a turn with an answer for each text, of which there are several (n).
func several(id, messages string, answers ...string) store.Call {
	var choices []string
	for i, answer := range answers {
		choices = append(choices, fmt.Sprintf(`{"index":%d,"message":%s}`, i, chatMessages("assistant:"+answer)))
	}
	return turnOf("chat", id, fmt.Sprintf(`{"n":%d,"messages":[%s]}`, len(answers), chatMessages(messages)), `{"choices":[`+strings.Join(choices, ",")+`]}`)
}

// J2, A.11: of several answers in one the conversation goes on from whichever the client took.
func TestAConversationGoesOnFromAnyOfSeveralAnswers(t *testing.T) {
	f := forestOf(t, several("1", "user:a", "x", "y", "z"), chat("2", "user:a|assistant:y|user:c", "d"), chat("3", "user:a|assistant:other|user:c", "e"))
	if got, want := shape(f), "1, 1 sample, 1 sample, 2<1, 3 divergence(1 message 2)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if f.turns[f.turns[3].parent].sample != 1 {
		t.Errorf("it goes on from answer %d", f.turns[f.turns[3].parent].sample)
	}
}

// J2: Anthropic and Responses conversations join as the clients send them back.
func TestEveryAPIJoins(t *testing.T) {
	anthropic := []store.Call{
		turnOf("messages", "1",
			`{"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"tools":[{"name":"f","input_schema":{"type":"object"}}],
			 "messages":[{"role":"user","content":"a"}]}`,
			`{"id":"msg","role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"text","text":"b"},
			 {"type":"tool_use","id":"t1","name":"f","input":{"y":1.0,"x":"ü"}}],"stop_reason":"tool_use"}`),
		turnOf("messages", "2",
			`{"system":"s","tools":[{"name":"f","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}}],
			 "messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]},
			 {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"text","text":"b"},
			 {"type":"tool_use","id":"t1","name":"f","input":{"x":"ü","y":1}}]},
			 {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"r"}]},{"type":"text","text":"go on"}]}]}`,
			`{"role":"assistant","content":[{"type":"text","text":"done"}]}`),
	}
	f := forestOf(t, anthropic...)
	if got := shape(f); got != "1, 2<1" {
		t.Errorf("messages: %s", got)
	}
	var out []string
	row := f.messagesRow(f.words.rows(always)[0], trajectory{})
	for _, m := range row.Messages {
		out = append(out, string(m))
	}
	want := []string{
		`{"role":"system","content":"s"}`,
		`{"role":"user","content":"a"}`,
		`{"role":"assistant","content":"b","reasoning_content":"hm","tool_calls":[{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"y\":1.0,\"x\":\"ü\"}"}}]}`,
		`{"role":"tool","content":"r","tool_call_id":"t1"}`,
		`{"role":"user","content":"go on"}`,
		`{"role":"assistant","content":"done"}`,
	}
	if strings.Join(out, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(out, "\n"), strings.Join(want, "\n"))
	}
	if fmt.Sprint(row.Train) != "[false false true false false true]" {
		t.Errorf("train is %v", row.Train)
	}
	if string(row.Tools) != `[{"function":{"name":"f","parameters":{"type":"object"}},"type":"function"}]` {
		t.Errorf("tools are %s", row.Tools)
	}

	responses := []store.Call{
		turnOf("responses", "1", `{"instructions":"s","input":"a"}`,
			`{"id":"r1","output":[{"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"hm"}]},
			 {"type":"function_call","id":"fc","call_id":"c1","name":"f","arguments":"{\"x\": 1}","status":"completed"}]}`),
		turnOf("responses", "2", `{"instructions":"s","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},
			 {"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},
			 {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},{"type":"function_call_output","call_id":"c1","output":"r"}]}`,
			`{"id":"r2","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]}]}]}`),
		turnOf("responses", "3", `{"instructions":"s","previous_response_id":"r2","input":"c"}`,
			`{"id":"r3","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"d"}]}]}`),
		turnOf("responses", "4", `{"instructions":"s","input":[{"role":"user","content":"a"},
			 {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},{"type":"function_call_output","call_id":"c1","output":"r"}]}`,
			`{"id":"r4","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]}]}`),
	}
	if got := shape(forestOf(t, responses...)); got != "1, 2<1, 3<2, 4 dropped_thinking(1 message 2)" {
		t.Errorf("responses: %s", got)
	}
}

// J2: what clients change without meaning it is not seen; what they mean is.
func TestMessagesThatMeanTheSame(t *testing.T) {
	same := [][2]string{
		{`{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","index":0,"function":{"name":"f","arguments":"{\"a\":1, \"b\":2}"}}],"refusal":null}`,
			`{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":2.0,\"a\":1}"}}]}`},
		{`{"role":"user","content":"a"}`, `{"content":[{"type":"text","text":"a"}], "role":"user"}`},
		{`{"role":"assistant","content":"é","annotations":[],"audio":null}`, `{"role":"assistant","content":"\u00e9"}`},
		{`{"role":"assistant","content":"x","reasoning":"r"}`, `{"role":"assistant","content":"x","reasoning_content":"r"}`},
		{`{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]}`,
			`{"role":"user","content":[{"text":"a","type":"text","cache_control":{"type":"ephemeral"}},{"image_url":{"url":"u"},"type":"image_url","cache_control":{"type":"ephemeral"}}]}`},
	}
	different := [][2]string{
		{`{"role":"user","content":"a"}`, `{"role":"user","content":"a "}`},
		{`{"role":"user","content":"a"}`, `{"role":"assistant","content":"a"}`},
		{`{"role":"assistant","content":"x","reasoning_content":"r"}`, `{"role":"assistant","content":"x"}`},
		{`{"role":"tool","tool_call_id":"1","content":"a"}`, `{"role":"tool","tool_call_id":"2","content":"a"}`},
		{`{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":9007199254740993}"}}]}`,
			`{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":9007199254740992}"}}]}`},
	}
	id := func(raw string) hash {
		b, err := chatMessage(json.RawMessage(raw))
		if err != nil {
			t.Fatal(err)
		}
		return b[0].message().id
	}
	for _, pair := range same {
		if id(pair[0]) != id(pair[1]) {
			t.Errorf("they differ:\n%s\n%s", pair[0], pair[1])
		}
	}
	for _, pair := range different {
		if id(pair[0]) == id(pair[1]) {
			t.Errorf("they are the same:\n%s\n%s", pair[0], pair[1])
		}
	}
}

// J4: what differs is shown from its beginning, in whole letters.
func TestWhatDiffersIsShownInWholeLetters(t *testing.T) {
	long := strings.Repeat("ü", 300)
	f := forestOf(t, chat("1", "user:a", "b"), chat("2", "user:"+long, "d"), chat("3", "user:x"+long, "d"))
	for _, turn := range f.turns[1:] {
		var have string
		if err := json.Unmarshal(turn.split.Have, &have); err != nil || strings.ContainsRune(have, '\uFFFD') || !strings.HasSuffix(have, "üü") {
			t.Errorf("it is shown as %s, %v", turn.split.Have, err)
		}
	}
}

// C3: the verdict.
func TestTheVerdictOfASession(t *testing.T) {
	call := func(id, body string, p store.Policy, o store.Outcome) store.Call {
		c := store.Call{ID: id, Policy: p, Request: store.Pack([]byte(body))}
		if o != "" {
			c.Result = &store.Result{Outcome: o}
		}
		return c
	}
	for _, test := range []struct {
		name  string
		s     store.Session
		calls []store.Call
		why   string
	}{
		{"nothing", store.Session{}, nil, ""},
		{"whole turns", store.Session{}, []store.Call{call("1", "a", store.Train, store.Complete), call("2", "b", store.Train, store.Truncated)}, ""},
		{"a failed turn", store.Session{}, []store.Call{call("1", "a", store.Train, store.StoreFailed)}, `call "1" ended as store_failed`},
		{"a failed attempt that was repeated", store.Session{}, []store.Call{call("1", "a", store.Train, store.UpstreamError), call("2", "a", store.Train, store.Complete)}, ""},
		{"a failed attempt after the turn", store.Session{}, []store.Call{call("1", "a", store.Train, store.Complete), call("2", "a", store.Train, store.ClientGone)}, `call "2" ended as client_gone`},
		{"under way", store.Session{}, []store.Call{call("1", "a", store.Observe, "")}, `call "1" is under way`},
		{"observed failures of others", store.Session{}, []store.Call{call("1", "a", store.Observe, store.UpstreamError), call("2", "b", store.Observe, store.ClientGone)}, ""},
		{"observed failures of ours", store.Session{}, []store.Call{call("1", "a", store.Observe, store.Lost)}, `call "1" ended as lost`},
		{"an observed turn that was not stored", store.Session{}, []store.Call{call("1", "a", store.Observe, store.StoreFailed)}, `call "1" ended as store_failed`},
		{"an observed turn that was not read", store.Session{}, []store.Call{call("1", "a", store.Observe, store.Unparsed)}, `call "1" ended as unparsed`},
		{"marked", store.Session{Incomplete: "a turn was not stored"}, nil, "a turn was not stored"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v, err := Judge(test.s, func(yield func(store.Call, error) bool) {
				for i, c := range test.calls {
					c.Position = int64(i + 1)
					if !yield(c, nil) {
						return
					}
				}
			})
			if err != nil || strings.Join(v.Why, "; ") != test.why || v.Complete != (test.why == "") {
				t.Errorf("the verdict is %+v, %v", v, err)
			}
		})
	}
}

// What comes in is anybody's: nothing in it may end us, and what is read once is read
// alike the second time.
func FuzzRead(f *testing.F) {
	for _, api := range []string{"chat", "messages", "responses"} {
		f.Add(api, `{"messages":[{"role":"user","content":"a"}],"input":"a"}`,
			`{"role":"assistant","content":[{"type":"text","text":"b"}],"choices":[{"message":{"role":"assistant","content":null}}],"output":[{"type":"reasoning"}]}`)
		f.Add(api, `{"messages":[{"role":"user","content":[{"type":"tool_result","content":null}]}],"input":[{"type":"function_call_output","output":[]}],"tools":[{"name":"f","input_schema":{}}]}`,
			`{"role":"assistant","content":[{"type":"tool_use","input":{}}],"choices":[{"message":{"tool_calls":[{"function":{"arguments":{}}}]}}],"output":[{"role":"assistant","content":"x"}]}`)
	}
	f.Fuzz(func(t *testing.T, api, request, answer string) {
		c := turnOf(api, "1", request, answer)
		fo := newForest()
		fo.verify = true
		for range 2 {
			if err := fo.add(c); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range fo.words.rows(always) {
			encode(fo.messagesRow(r, trajectory{}))
		}
		if len(fo.problems) > 0 {
			t.Fatal(fo.problems)
		}
		if len(fo.words.nodes) == 2 && fo.turns[1].split == nil && fo.turns[1].parent == none {
			t.Fatal("the same turn twice has no reason for not going on")
		}
	})
}
