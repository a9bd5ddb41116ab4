package trace

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"roundhouse/internal/store"
)

func openStore(t testing.TB) *store.Store {
	t.Helper()
	dir := t.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil { // syncs of a disk are not what is tested here
		if dir, err = os.MkdirTemp("/dev/shm", "trace"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
	}
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(dir, "test.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

func record(t testing.TB, st *store.Store, c store.Call) {
	t.Helper()
	err := st.Begin(t.Context(), c)
	if err == nil && c.Result != nil {
		err = st.Commit(t.Context(), c.Session, c.ID, *c.Result)
		if err == nil && c.Result.Delivery != store.Pending {
			err = st.Deliver(t.Context(), c.Session, c.ID, c.Result.Delivery, 1)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func lines(t testing.TB, st *store.Store, o Options) (out []map[string]any, raw []string) {
	t.Helper()
	x, err := NewExport(st, o)
	if err != nil {
		t.Fatal(err)
	}
	for line, err := range x.Lines(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if v["v"] != float64(Version) || v["format"] != string(o.Format) || v["cursor"] == "" {
			t.Errorf("the row is %s", line)
		}
		out, raw = append(out, v), append(raw, string(line))
	}
	return out, raw
}

// randomSession records a random forest of turns with tokens. Each sampled token is
// one of a kind, so that it can be found again; it returns which turns are delivered.
func randomSession(t testing.TB, st *store.Store, r *rand.Rand, k store.SessionKey, turns int) (sampled map[int32]string) {
	sampled = map[int32]string{}
	type state struct {
		messages string
		tokens   []int32
	}
	states := []state{}
	next := int32(1000)
	for i := range turns {
		s := state{messages: "system:s"}
		if len(states) > 0 && r.IntN(6) > 0 {
			s = states[r.IntN(len(states))]
		}
		id := fmt.Sprint(i)
		s.messages += fmt.Sprintf("|user:%d", r.IntN(3))
		s.tokens = append(slices.Clone(s.tokens), int32(r.IntN(3)), int32(r.IntN(3)))
		var output []int32
		for range 1 + r.IntN(3) {
			next++
			output = append(output, next)
		}
		c := withTokens(chat(id, s.messages, "answer "+id), s.tokens, output)
		c.Session = k
		c.Result.Delivery = []store.Delivery{store.Full, store.Full, store.Full, store.Partial, store.Pending}[r.IntN(5)]
		if c.Result.Delivery == store.Full {
			for _, token := range output {
				sampled[token] = id
			}
		}
		record(t, st, c)
		states = append(states, state{s.messages + "|assistant:answer " + id, slices.Concat(s.tokens, output)})
	}
	return sampled
}

// J3: token rows have equal lengths, mask 1 on sampled tokens alone, and each sampled
// token of the chosen turns is trained in exactly one row; the default is those that
// were delivered.
func TestEachSampledTokenIsTrainedOnce(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	for seed := range uint64(4) {
		k := store.SessionKey{ID: fmt.Sprint("s", seed), Incarnation: 1}
		sampled := randomSession(t, st, rand.New(rand.NewPCG(seed, 2)), k, 15)
		trained := map[int32]int{}
		rows, _ := lines(t, st, Options{Format: Tokens, Session: store.Of(k)})
		for _, row := range rows {
			tokens, mask, logprobs := row["tokens"].([]any), row["mask"].([]any), row["logprobs"].([]any)
			if len(mask) != len(tokens) || len(logprobs) != len(tokens) {
				t.Fatalf("%d tokens, %d of mask, %d logprobs", len(tokens), len(mask), len(logprobs))
			}
			inside := make([]bool, len(tokens))
			for _, s := range row["spans"].([]any) {
				s := s.(map[string]any)
				for i := int(s["start"].(float64)); i < int(s["end"].(float64)); i++ {
					inside[i] = s["kind"] == "sampled"
				}
			}
			for i := range tokens {
				token := int32(tokens[i].(float64))
				if (mask[i] == 1.0) != inside[i] || (logprobs[i] == -0.5) != inside[i] {
					t.Fatalf("token %d has mask %v and logprob %v, and is in a sampled span: %v", i, mask[i], logprobs[i], inside[i])
				}
				if inside[i] {
					trained[token]++
				}
			}
		}
		if !slices.Equal(slices.Sorted(maps.Keys(trained)), slices.Sorted(maps.Keys(sampled))) {
			t.Errorf("seed %d: trained are %v, not %v", seed, trained, sampled)
		}
		for token, n := range trained {
			if n != 1 {
				t.Errorf("seed %d: token %d is trained %d times", seed, token, n)
			}
		}
	}
}

// J3: each answer is trained in exactly one row of messages, too.
func TestEachAnswerIsTrainedOnce(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	randomSession(t, st, rand.New(rand.NewPCG(7, 7)), key, 20)
	trained := map[string]int{}
	rows, _ := lines(t, st, Options{Format: Messages})
	for _, row := range rows {
		messages, train := row["messages"].([]any), row["train"].([]any)
		if len(messages) != len(train) {
			t.Fatalf("%d messages, %d marks", len(messages), len(train))
		}
		for i, m := range messages {
			m := m.(map[string]any)
			if train[i] == true {
				trained[m["content"].(string)]++
				if m["role"] != "assistant" {
					t.Errorf("trained is %v", m)
				}
			}
		}
	}
	if len(trained) != 20 {
		t.Errorf("%d answers are trained", len(trained))
	}
	for text, n := range trained {
		if n != 1 {
			t.Errorf("%q is trained %d times", text, n)
		}
	}
}

// J3, J4, A.11: several answers in one are a turn, and each of them is trained in one row. Of
// tokens there are none, which is said.
func TestEachOfSeveralAnswersIsTrainedOnce(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	record(t, st, several("1", "user:a", "x", "y"))
	record(t, st, chat("2", "user:a|assistant:y|user:c", "d"))
	rows, _ := lines(t, st, Options{Format: Messages})
	var got []string
	for _, row := range rows {
		parts := []string{fmt.Sprint(row["call_ids"], " ", row["break_reason"])}
		for i, m := range row["messages"].([]any) {
			parts = append(parts, fmt.Sprint(m.(map[string]any)["content"], ":", row["train"].([]any)[i]))
		}
		got = append(got, strings.Join(parts, " "))
	}
	if want := []string{"[1] <nil> a:false x:true", "[1 2] sample a:false y:true c:false d:true"}; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	x, err := NewExport(st, Options{Format: Tokens})
	if err != nil {
		t.Fatal(err)
	}
	for line, err := range x.Lines(t.Context()) {
		t.Errorf("got %s, %v", line, err)
	}
	if fmt.Sprint(x.Skipped()) != "map[no_token_ids:1 several_answers:1]" {
		t.Errorf("skipped are %v", x.Skipped())
	}
	if r, err := Check(t.Context(), st, key); err != nil || r.Hole || r.Turns != 2 || r.Trajectories != 2 || r.MergeRatio != 1 {
		t.Errorf("the report is %+v, %v", r, err)
	}
}

// J3: rows are UTF-8, also of a call that was not: who reads them reads them as such.
func TestRowsAreUTF8(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	record(t, st, turnOf("chat", "1", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\xff\"}],\"tools\":[{\"x\":\"\xff\"}]}",
		"{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":[{\"type\":\"x\",\"x\":\"b\xff\"}]}}]}"))
	for _, format := range []Format{Messages, Calls} {
		_, raw := lines(t, st, Options{Format: format})
		if len(raw) != 1 || !utf8.ValidString(raw[0]) || !strings.Contains(raw[0], `"a\ufffd"`) && !strings.Contains(raw[0], "\"a\uFFFD\"") || !strings.Contains(raw[0], "\"b\uFFFD\"") {
			t.Errorf("%s: %q", format, raw)
		}
	}
}

// J3, STYLE 20: the manual has every member of a row, and every reason of a break.
func TestManualHasTheMembersOfRows(t *testing.T) {
	manual, err := os.ReadFile("../../docs/recording.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rows, _ := strings.Cut(string(manual), "\n## Rows\n")
	words := []string{}
	for _, of := range []reflect.Type{reflect.TypeFor[messagesRow](), reflect.TypeFor[tokensRow](), reflect.TypeFor[span](), reflect.TypeFor[callRow]()} {
		for _, f := range reflect.VisibleFields(of) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			words = append(words, name)
		}
	}
	for _, r := range []Reason{Retry, Sample, Retokenised, DroppedThinking, SubAgent, ChangedHead, Compaction, Divergence, Unreadable} {
		words = append(words, string(r))
	}
	for _, word := range words {
		if word != "" && !strings.Contains(rows, "`"+word+"`") {
			t.Errorf("%q is not there", word)
		}
	}
}

// J3: an export goes on after any row, and gives the same ones.
func TestAnExportCanBeResumed(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	for i := range 3 {
		k := store.SessionKey{ID: fmt.Sprint("s", i), Incarnation: 1}
		randomSession(t, st, rand.New(rand.NewPCG(uint64(i), 3)), k, 8)
	}
	for _, format := range []Format{Messages, Tokens, Calls} {
		rows, all := lines(t, st, Options{Format: format})
		if len(all) < 6 {
			t.Fatalf("%s: %d rows", format, len(all))
		}
		for i, row := range rows {
			_, rest := lines(t, st, Options{Format: format, After: row["cursor"].(string)})
			if !slices.Equal(rest, all[i+1:]) {
				t.Errorf("%s: after row %d come %d rows, not %d", format, i, len(rest), len(all)-i-1)
			}
		}
	}
	for _, o := range []Options{
		{Format: "csv"}, {Format: Calls, After: "s1.1"}, {Format: Tokens, After: "c1"}, {Format: Tokens, After: "s1"}, {Format: Calls, After: "c-1"},
	} {
		if _, err := NewExport(st, o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// J3: filters choose what is trained; what is not chosen stays as context where a
// chosen turn goes on from it. Rewards join by session.
func TestFiltersAndRewards(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	session := store.Session{SessionKey: key, State: "active", Created: start, LastActivity: start, Metadata: []byte(`{"score":0.25,"big":12345678901234567890}`)}
	if err := st.SaveSession(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	first := withTokens(chat("1", "user:a", "b"), []int32{1}, []int32{2})
	first.Result.Delivery = store.Pending
	record(t, st, first)
	second := withTokens(chat("2", "user:a|assistant:b|user:c", "d"), []int32{1, 2, 3}, []int32{4, 5})
	second.Result.Weights, second.Result.Logprobs = "w7", nil
	record(t, st, second)
	third := chat("3", "user:a|assistant:b|user:c|assistant:d|user:e", "f")
	third.Model = "other"
	record(t, st, third)
	failed := chat("4", "user:x", "")
	failed.Result.Outcome = store.UpstreamError
	record(t, st, failed)
	open := chat("5", "user:x", "")
	open.Result = nil
	record(t, st, open)

	_, raw := lines(t, st, Options{Format: Tokens, RewardKey: "score"})
	want := `{"v":1,"format":"tokens","cursor":"s1.1","session_id":"s","principal":"local","incarnation":1,"trajectory":0,"call_ids":["1","2"],` +
		`"model":"m","status":"complete","reward":0.25,"metadata":{"score":0.25,"big":12345678901234567890},` +
		`"tokens":[1,2,3,4,5],"mask":[0,0,0,1,1],"logprobs":null,` +
		`"spans":[{"call_id":"1","start":1,"end":2,"kind":"context"},{"call_id":"2","start":3,"end":5,"kind":"sampled","weight_version":"w7"}]}`
	if len(raw) != 1 || raw[0] != want {
		t.Errorf("got  %s\nwant %s", raw, want)
	}
	x, err := NewExport(st, Options{Format: Tokens})
	if err != nil {
		t.Fatal(err)
	}
	for range x.Lines(t.Context()) {
	}
	if x.Skipped()["no_token_ids"] != 1 {
		t.Errorf("skipped are %v", x.Skipped())
	}
	count := func(o Options, want int) {
		t.Helper()
		if rows, raw := lines(t, st, o); len(rows) != want {
			t.Errorf("%+v gives %d rows: %s", o, len(rows), raw)
		}
	}
	count(Options{Format: Messages}, 1)
	count(Options{Format: Messages, Models: []string{"m"}}, 1)
	count(Options{Format: Messages, Models: []string{"none"}}, 0)
	count(Options{Format: Messages, Outcomes: []store.Outcome{store.Truncated}}, 0)
	count(Options{Format: Messages, Session: store.SessionFilter{States: []string{store.Closed}}}, 0)
	count(Options{Format: Messages, Since: start.AddDate(1, 0, 0)}, 0)
	count(Options{Format: Messages, Until: start}, 0)
	count(Options{Format: Calls}, 5)
	count(Options{Format: Calls, Outcomes: []store.Outcome{store.UpstreamError}}, 1)
	count(Options{Format: Calls, Deliveries: []store.Delivery{store.Full}}, 3)
	rewards, err := ReadRewards(strings.NewReader("{\"session_id\":\"s\",\"reward\":[1,2]}\n\n{\"session_id\":\"t\",\"reward\":null}"))
	if err != nil {
		t.Fatal(err)
	}
	rows, _ := lines(t, st, Options{Format: Calls, Rewards: rewards, RewardKey: "score"})
	if fmt.Sprint(rows[0]["reward"]) != "[1 2]" {
		t.Errorf("the reward is %v", rows[0]["reward"])
	}
	for _, line := range []string{"{}", "[]", `{"session_id":7,"reward":1}`} {
		if _, err := ReadRewards(strings.NewReader("\n" + line)); err == nil || !strings.HasSuffix(err.Error(), `line 2 must be an object with "session_id", a string, and "reward"`) {
			t.Errorf("%s: %v", line, err)
		}
	}
	if rewards, err = ReadRewards(strings.NewReader("\uFEFF{\"session_id\":\"s\",\"reward\":1}\r\n")); err != nil || string(rewards["s"]) != "1" {
		t.Errorf("a file of another editor: %s, %v", rewards, err)
	}
}

// J4: a check counts, and finds holes and what does not fit together.
func TestCheckFindsHoles(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	record(t, st, withTokens(chat("1", "user:a", "b"), []int32{1}, []int32{2}))
	record(t, st, withTokens(chat("2", "user:a|assistant:b|user:c", "d"), []int32{1, 9, 3}, []int32{4}))
	r, err := Check(t.Context(), st, key)
	if err != nil || r.Hole || !r.Verdict.Complete || r.Turns != 2 || r.WithTokens != 2 || r.MergeRatio != 0 || r.Trajectories != 2 {
		t.Errorf("the report is %+v, %v", r, err)
	}
	if want := `[{"call":"2","reason":"retokenised","near":"1","unit":"token","at":1,"had":2,"have":9}]`; string(encode(r.Breaks)) != want {
		t.Errorf("the breaks are %s", encode(r.Breaks))
	}
	wrong := withTokens(chat("3", "user:x", "y"), []int32{1}, []int32{2})
	wrong.Result.Usage = []byte(`{"prompt_tokens":1,"completion_tokens":2}`)
	record(t, st, wrong)
	if r, err = Check(t.Context(), st, key); err != nil || !r.Hole || len(r.Problems) != 1 {
		t.Errorf("the report is %+v, %v", r, err)
	}
	other := key
	other.Incarnation = 2
	open := chat("1", "user:a", "b")
	open.Session, open.Result = other, nil
	record(t, st, open)
	if r, err = Check(t.Context(), st, other); err != nil || !r.Hole || r.UnderWay != 1 || r.Verdict.Complete {
		t.Errorf("the report is %+v, %v", r, err)
	}
	if _, err := st.Seal(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if r, err = Check(t.Context(), st, other); err != nil || !r.Hole || !r.Sealed || r.Outcomes[store.Lost] != 1 {
		t.Errorf("the report is %+v, %v", r, err)
	}
	_, err = Check(t.Context(), st, store.SessionKey{ID: "nobody", Incarnation: 1})
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the error is %v", err)
	}
}

// J4: bodies that are not those that were stored are a problem.
func TestCheckFindsDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	open := func() *store.Store {
		st, err := store.Open(t.Context(), store.Config{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	st := open()
	record(t, st, chat("1", "user:a", "b"))
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("UPDATE calls SET body_digest = zeroblob(32)"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	st = open()
	defer st.Close()
	r, err := Check(t.Context(), st, key)
	if err != nil || !r.Hole || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "damaged") {
		t.Errorf("the report is %+v, %v", r, err)
	}
}

// BenchmarkExport measures rows: sessions of 20 turns in one trajectory each, and the
// calls of the log.
func BenchmarkExport(b *testing.B) {
	st := openStore(b)
	for s := range 25 {
		messages, tokens := "system:"+strings.Repeat("s", 2000), make([]int32, 500)
		for i := range 20 {
			id := fmt.Sprint(i)
			messages += "|user:" + strings.Repeat("u", 300)
			tokens = append(tokens, make([]int32, 100)...)
			output := make([]int32, 100)
			output[0] = int32(i)
			c := withTokens(chat(id, messages, id), tokens, output)
			c.Session = store.SessionKey{ID: fmt.Sprint(s), Incarnation: 1}
			record(b, st, c)
			messages, tokens = messages+"|assistant:"+id, append(tokens, output...)
		}
	}
	for _, format := range []Format{Tokens, Messages, Calls} {
		b.Run(string(format), func(b *testing.B) {
			rows := 0
			for b.Loop() {
				x, err := NewExport(st, Options{Format: format})
				if err != nil {
					b.Fatal(err)
				}
				for _, err := range x.Lines(b.Context()) {
					if err != nil {
						b.Fatal(err)
					}
					rows++
				}
			}
			b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
