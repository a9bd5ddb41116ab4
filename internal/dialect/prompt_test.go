package dialect_test

import (
	"slices"
	"testing"

	"roundhouse/internal/dialect"
)

// C10: an engine that tells the ids of a prompt on the side alone is asked for them as it
// asks itself; what it answers counts only if it fits the call.
func TestPromptOnTheSide(t *testing.T) {
	const answer = `{"choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop","logprobs":{"content":[{"id":7,"token":"Hi","logprob":-0.5}]}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`
	call := parseRequest(t, dialect.Chat, `{"model":"a\u0062","messages":[]}`).Forward(dialect.Profile{Engine: dialect.LlamaCpp}, true)
	if !call.AsksForPrompt() {
		t.Fatal("it does not ask")
	}
	request, err := call.Tokenize([]byte(`{"prompt":"<a>\u00e9\n"}`))
	if err != nil || string(request) != `{"model":"a\u0062","content":"<a>\u00e9\n","add_special":true,"parse_special":true}` {
		t.Errorf("asks %s, %v", request, err)
	}
	ids, err := dialect.ReadTokenized([]byte(` {"tokens":[2, 105,9]}`))
	if err != nil || !slices.Equal(ids, []int32{2, 105, 9}) {
		t.Errorf("read %v, %v", ids, err)
	}

	r := call.Whole([]byte(answer), dialect.Options{})
	if !r.NeedsPrompt() || !slices.Equal(r.Flags, []string{dialect.FlagNoPromptIDs}) {
		t.Fatalf("result %+v", r)
	}
	if err := r.SetPrompt([]int32{2, 105}); err == nil || !r.NeedsPrompt() || len(r.Flags) != 1 {
		t.Errorf("ids that are too few: %v, %+v", err, r)
	}
	if err := r.SetPrompt(ids); err != nil || r.NeedsPrompt() || len(r.Flags) != 0 || !slices.Equal(r.Tokens[0].Prompt, ids) {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestPromptOnTheSideThatCannotBeRead(t *testing.T) {
	call := parseRequest(t, dialect.Chat, `{}`).Forward(dialect.Profile{Engine: dialect.LlamaCpp}, true)
	for _, answer := range []string{``, `{`, `[]`, `{}`, `{"prompt":null}`, `{"prompt":["a"]}`} {
		if request, err := call.Tokenize([]byte(answer)); err == nil {
			t.Errorf("%q: asks %s", answer, request)
		}
	}
	for _, answer := range []string{``, `x`, `[1]`, `{}`, `{"tokens":null}`, `{"tokens":[]}`, `{"tokens":["a"]}`, `{"tokens":[-1]}`, `{"tokens":[{"id":1}]}`} {
		if ids, err := dialect.ReadTokenized([]byte(answer)); err == nil {
			t.Errorf("%q: %v", answer, ids)
		}
	}
}

// C10, A.16 row 20: who does not want ids is not asked for them; and who gets none of an
// engine that has them, has that on record.
func TestWhoIsAskedForAPrompt(t *testing.T) {
	message := []byte(`{"type":"message","content":[],"stop_reason":"end_turn"}`)
	for engine, missing := range map[dialect.Engine]bool{
		"": false, dialect.OpenAI: false, dialect.Anthropic: false, dialect.VLLM: true, dialect.SGLang: true, dialect.LMDeploy: true, dialect.LlamaCpp: true,
	} {
		for _, api := range []dialect.API{dialect.Chat, dialect.Messages, dialect.Responses} {
			for _, tokens := range []bool{true, false} {
				call := parseRequest(t, api, `{}`).Forward(dialect.Profile{Engine: engine}, tokens)
				if call.AsksForPrompt() != (engine == dialect.LlamaCpp && api == dialect.Chat && tokens) {
					t.Errorf("%s, %s, %v: %v", engine, api, tokens, call.AsksForPrompt())
				}
				if api != dialect.Messages {
					continue
				}
				r := call.Whole(message, dialect.Options{})
				if slices.Contains(r.Flags, dialect.FlagNoTokens) != (missing && tokens) {
					t.Errorf("%s, %v: flags %v", engine, tokens, r.Flags)
				}
			}
		}
	}
}
