package dialect_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"roundhouse/internal/dialect"
)

var engines = append([]dialect.Engine{""}, dialect.Engines()...)

func pick[T any](list []T, by uint8) T { return list[int(by)%len(list)] }

var allAPIs = []dialect.API{dialect.Chat, dialect.Messages, dialect.Responses}

// C13, A.19: whatever a stream holds, it comes to the same in any pieces; what is let
// through are its own bytes; what came of it is JSON.
func FuzzStream(f *testing.F) {
	for _, x := range fixtures(f) {
		f.Add(uint8(apis[x.setup.API]-1), uint8(0), false, "", []byte(x.stream), uint16(3))
		f.Add(uint8(apis[x.setup.API]-1), uint8(3), true, "<|im_end|>", []byte(strings.ReplaceAll(x.stream, "\n", "\r\n")), uint16(64))
	}
	f.Fuzz(func(t *testing.T, api, engine uint8, lenient bool, endOfText string, stream []byte, size uint16) {
		r, err := dialect.ParseRequest(pick(allAPIs, api), []byte(`{"stream":true,"tools":[{"function":{"name":"get_weather"}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		profile := dialect.Profile{Engine: pick(engines, engine), EndOfText: endOfText, Experts: true}
		call := r.Forward(profile, true)
		opts := dialect.Options{Lenient: lenient}
		got := run(call, opts, string(stream), 0)
		for _, n := range []int{1, int(size)} {
			if in := run(call, opts, string(stream), n); !reflect.DeepEqual(in, got) {
				t.Fatalf("in pieces of %d bytes: got\n%+v\nwant\n%+v", n, in, got)
			}
		}
		if got.Response != nil && !json.Valid(got.Response) {
			t.Fatalf("the answer is no JSON: %s", got.Response)
		}
		plain := profile.Engine == "" && endOfText == ""
		comments := bytes.HasPrefix(stream, []byte(":")) || bytes.Contains(stream, []byte("\n:")) || bytes.Contains(stream, []byte("\r:"))
		if all := strings.Join(got.Out, "") + strings.Join(got.Tail, ""); plain && !comments && !strings.HasPrefix(string(stream), all) {
			t.Fatalf("let through %q", all)
		} else if plain && lenient && !got.Done && len(all) != len(stream) {
			t.Fatalf("let through only %q", all)
		}
	})
}

// C10: whatever the texts and wherever they are cut, the end-of-text string is gone and
// nothing else is.
func FuzzScrub(f *testing.F) {
	f.Add("a<|im_end|>b<|im_<|im_end|>", "<|im_end|>", uint64(0xAAAA))
	f.Add("aaab", "aab", uint64(0xFFFF))
	f.Add("x\uff5cend\u2581of\uff5c", "\uff5cend\u2581of\uff5c", uint64(7))
	f.Add("🙂🙂\"\\\n🙃", "🙂🙃", uint64(9))
	f.Fuzz(func(t *testing.T, text, stop string, cuts uint64) {
		text, stop = strings.ToValidUTF8(text, "?"), strings.ToValidUTF8(stop, "?")
		var stream, joined strings.Builder
		part := ""
		send := func() {
			quoted, _ := json.Marshal(part)
			fmt.Fprintf(&stream, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%s}}]}\n\n", quoted)
			part = ""
		}
		for i, r := range []rune(text) {
			part += string(r)
			if cuts>>(i%64)&1 == 1 {
				send()
			}
		}
		send()
		stream.WriteString("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		r, err := dialect.ParseRequest(dialect.Chat, []byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		got := run(r.Forward(dialect.Profile{EndOfText: stop}, false), dialect.Options{}, stream.String(), 0)
		for _, line := range append(got.Out, got.Tail...) {
			var chunk struct {
				Choices []struct{ Delta struct{ Content string } }
			}
			if data, ok := strings.CutPrefix(line, "data: {"); ok {
				if err := json.Unmarshal([]byte("{"+data), &chunk); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				joined.WriteString(chunk.Choices[0].Delta.Content)
			}
		}
		want := text
		if stop != "" {
			want = strings.ReplaceAll(text, stop, "")
		}
		if joined.String() != want {
			t.Fatalf("got %q, want %q", joined.String(), want)
		}
		if strings.Join(got.Out, "")+strings.Join(got.Tail, "") != stream.String() && want == text {
			t.Fatalf("bytes were changed: %q", got.Out)
		}
	})
}

// A.3, C2, C10: whatever the request, what is sent is JSON without a session, and
// without a profile nothing else is changed.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","session_id":"s","stream":true,"tools":[{"type":"bash"},{"input_schema":{}}]}`, `{"session_id":1}`,
		` { "logprobs" : null , "session_id":"a" , "return_token_ids":"no" } `, `{"a":1,"a":2}`, `[]`, `{"tools":[],"tool_choice":1}`,
	} {
		f.Add(uint8(1), uint8(4), []byte(seed))
	}
	f.Fuzz(func(t *testing.T, api, engine uint8, body []byte) {
		before := bytes.Clone(body)
		r, err := dialect.ParseRequest(pick(allAPIs, api), body)
		if err != nil {
			return
		}
		for _, p := range []dialect.Profile{{}, {Engine: pick(engines, engine), EndOfText: "x", Experts: true}} {
			sent := r.Forward(p, true).Body
			var members map[string]json.RawMessage
			if err := json.Unmarshal(sent, &members); err != nil {
				t.Fatalf("%v: %s", err, sent)
			}
			if _, ok := members["session_id"]; ok {
				t.Fatalf("the session is sent: %s", sent)
			}
			if p.Engine == "" && !bytes.Contains(body, []byte("session")) && !bytes.Contains(body, []byte(`\u`)) && !bytes.Equal(sent, body) {
				t.Fatalf("sent %s", sent)
			}
		}
		cut, session, err := dialect.CutSession(body)
		if err != nil || session != r.Session || !bytes.Equal(cut, r.Forward(dialect.Profile{}, false).Body) {
			t.Fatalf("auxiliary: %s, session %q, error %v", cut, session, err)
		}
		if !bytes.Equal(before, body) {
			t.Fatalf("the body was changed: %s", body)
		}
	})
}

// C10: whatever the answer, what roundhouse asked for does not reach the client.
func FuzzWhole(f *testing.F) {
	f.Add(uint8(0), uint8(3), []byte(`{"choices":[{"index":0,"message":{"content":"a</s>"},"finish_reason":"stop","token_ids":[1],"logprobs":{"content":[]}}],"prompt_token_ids":[1]}`))
	f.Add(uint8(1), uint8(5), []byte(`{"content":[{"type":"text","text":"</s>"}],"stop_reason":"end_turn","output_ids":[1],"output_token_logprobs":[[-1,1]]}`))
	f.Add(uint8(2), uint8(0), []byte(`{"status":"completed","output":[]}`))
	f.Fuzz(func(t *testing.T, api, engine uint8, body []byte) {
		r, err := dialect.ParseRequest(pick(allAPIs, api), []byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		before := bytes.Clone(body)
		call := r.Forward(dialect.Profile{Engine: pick(engines, engine), EndOfText: "</s>", Experts: true}, true)
		for _, lenient := range []bool{false, true} {
			got := call.Whole(body, dialect.Options{Lenient: lenient})
			if !got.Release {
				continue
			}
			if got.Outcome != dialect.Unparsed && !json.Valid(got.Tail) {
				t.Fatalf("it is no JSON: %s", got.Tail)
			}
			if got.Outcome.Good() && pick(allAPIs, api) == dialect.Chat && pick(engines, engine) == dialect.VLLM {
				var answer struct{ Choices []map[string]json.RawMessage }
				if err := json.Unmarshal(got.Tail, &answer); err != nil {
					continue // encoding/json takes other letter cases for the same
				}
				for _, choice := range answer.Choices {
					if choice["token_ids"] != nil || choice["logprobs"] != nil {
						t.Fatalf("not stripped: %s", got.Tail)
					}
				}
			}
		}
		if !bytes.Equal(before, body) {
			t.Fatalf("the body was changed: %s", body)
		}
	})
}
