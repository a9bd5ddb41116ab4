package loop

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// B.5.5: engines refuse requests in which the arguments of a call are no JSON object, so the
// model is reminded of such a call in a form that they take, and can mend it.
func TestArgumentsThatEnginesWouldRefuse(t *testing.T) {
	for written, wanted := range map[string]string{
		`{"a": 1}`: `{"a": 1}`, ``: `{}`, ` `: `{}`, `{"a":`: `{"invalid":"{\"a\":"}`, `[1]`: `{"invalid":"[1]"}`, `word`: `{"invalid":"word"}`, "{\"a\":\"\n\"}": `{"invalid":"{\"a\":\"\n\"}"}`,
	} {
		if got := callArguments(written); got != wanted {
			t.Errorf("%q becomes %q, want %q", written, got, wanted)
		}
	}
}

// X9: what comes in very many pieces takes no longer for each of them: a text, thoughts, and
// arguments whose name is repeated with each piece.
func TestVeryLongAnswers(t *testing.T) {
	const pieces = 50_000
	r, err := newTestRun(t, "", Task{Functions: []Function{{Name: "f"}}})
	if err != nil {
		t.Fatal(err)
	}
	r.tools.addFunctions(r.t.Functions)
	r.observe = func(Event) {}
	reader := &chatReader{co: &composer{r: r}, message: &chatMessage{Role: "assistant", Content: json.RawMessage("null")}}
	word := strings.Repeat("x", 50)
	began := time.Now()
	for _, piece := range []string{
		fmt.Sprintf(`{"reasoning_content":%q}`, word), fmt.Sprintf(`{"content":%q}`, word),
		fmt.Sprintf(`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":%q}}]}`, word),
	} {
		for range pieces {
			if err := reader.take([]byte(`{"choices":[{"delta":` + piece + `}]}`)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := reader.finish("stop"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 60*time.Second { // seconds, where each copies all before it minutes
		t.Errorf("it took %s", took)
	}
	all := pieces * len(word)
	if len(r.output) != 3 || len(r.output[0].Thoughts) != all || len(r.output[1].Text) != all || len(r.output[2].Arguments) != all || len(reader.message.extra["reasoning_content"]) != all+2 {
		t.Error("something of it is lost")
	}
}

// A list that was made under another filter is made anew if it lacks what this one names
// (B.1).
func TestListsUnderOtherFilters(t *testing.T) {
	tools := []ListedTool{{Name: "a"}, {Name: "b"}}
	for _, c := range []struct {
		f       *Filter
		covered bool
		allowed int
	}{{nil, true, 2}, {&Filter{Names: []string{"b"}}, true, 1}, {&Filter{Names: []string{"b", "c"}}, false, 1}, {&Filter{Names: []string{}}, true, 0}, {&Filter{ReadOnly: new(bool)}, true, 2}} {
		if covered, allowed := c.f.coveredBy(tools), len(c.f.allowed(tools)); covered != c.covered || allowed != c.allowed {
			t.Errorf("%+v: %v, %d", c.f, covered, allowed)
		}
	}
}
