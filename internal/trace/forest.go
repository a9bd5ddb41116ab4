package trace

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"roundhouse/internal/store"
)

// Reason is why a turn does not simply go on from an earlier one.
type Reason string

// The reasons. What a client meant by rewriting its history is a guess; where it
// differs is not.
const (
	// Retry is a prompt that an earlier turn had: another attempt, or another sample.
	Retry Reason = "retry"
	// Sample is another answer of the same call, which asked for several.
	Sample Reason = "sample"
	// Retokenised is a history that is the same in words and another in tokens.
	Retokenised Reason = "retokenised"
	// DroppedThinking is a history that is the same but for what the model thought.
	DroppedThinking Reason = "dropped_thinking"
	// SubAgent is another conversation, with other system messages or tools.
	SubAgent Reason = "sub_agent"
	// ChangedHead is the same conversation under other system messages or tools.
	ChangedHead Reason = "changed_head"
	// Compaction is a shorter history than the one it leaves.
	Compaction Reason = "compaction"
	// Divergence is any other history that differs.
	Divergence Reason = "divergence"
	// Unreadable is a request or an answer that is not that of its API.
	Unreadable Reason = "unreadable"
)

// Break is where a turn leaves an earlier one.
type Break struct {
	Call   string `json:"call"` // the turn
	Reason Reason `json:"reason"`
	Near   string `json:"near,omitempty"` // the turn that it has most in common with
	Unit   string `json:"unit,omitempty"` // "token" or "message"
	// At is the first unit that differs, counted from 0; message 0 stands for the system
	// messages and tools. It is the length of the one that ended first if the rest is the same.
	At   int             `json:"at"`
	Had  json.RawMessage `json:"had,omitempty"`  // that unit in the near turn, shortened
	Have json.RawMessage `json:"have,omitempty"` // and in this one
}

// turn is a call in the forest. One that has several answers (n) is there once for each,
// since the conversation may go on from any of them.
type turn struct {
	call     store.Call // less the bytes of bodies and the tokens
	sample   int        // which of its answers it is, from 0
	answers  int        // how many there are; 0 if they could not be read
	parent   int        // none is a root
	split    *Break     // nil if it goes on from its parent, or is the first
	tokens   int        // its entry in the tree of tokens, or none
	messages int        // its entry in the tree of messages, or none
	logprobs []float64
	response string // the answer's id, for previous_response_id
}

// forest is the turns of a session, in the order of their intents.
type forest struct {
	turns  []turn
	tokens tree[int32]
	words  tree[hash] // of messages, the head first
	bare   tree[hash] // the same without thinking; its entries are those of words

	tokenTurns []int // the turn of each entry of tokens
	wordTurns  []int // the turn of each entry of words and bare

	reader   reader
	contents map[hash]json.RawMessage // of messages
	heads    map[hash]head
	prompts  map[hash]int   // the first turn with a prompt
	children []int          // how many turns go on from each
	problems []string       // what does not fit together, for Check
	byID     map[string]int // the turn of a response's id
	begins   map[hash]bool  // first messages, whatever the head
	verify   bool           // compare every sequence with what the trees make of it
}

// head is what stands before a conversation.
type head struct {
	system []json.RawMessage
	tools  json.RawMessage
}

func newForest() *forest {
	return &forest{
		contents: map[hash]json.RawMessage{}, heads: map[hash]head{}, prompts: map[hash]int{},
		byID: map[string]int{}, begins: map[hash]bool{},
	}
}

// add takes in the next call of the session, if it is a turn.
func (f *forest) add(c store.Call) error {
	if c.Result == nil || !c.Result.Outcome.Trainable() {
		return nil
	}
	request, err := c.Request.Bytes()
	if err != nil {
		return fmt.Errorf("the request of call %q: %w", c.ID, err)
	}
	answer, err := c.Result.Answer().Bytes()
	if err != nil {
		return fmt.Errorf("the answer of call %q: %w", c.ID, err)
	}
	talk, readErr := f.reader.read(c.API, request, answer)
	f.insert(c, talk, 0, readErr)
	for sample := 1; sample < len(talk.answers); sample++ {
		f.insert(c, talk, sample, nil)
	}
	return nil
}

// insert takes in a call that was read, with one of its answers, or that could not be.
func (f *forest) insert(c store.Call, talk conversation, sample int, readErr error) {
	prompt, output := c.Result.PromptIDs, c.Result.OutputIDs
	t := turn{
		call: c, sample: sample, answers: len(talk.answers), parent: none, tokens: none, messages: none,
		logprobs: c.Result.Logprobs, response: talk.id,
	}
	light := *c.Result // what is kept does not hold the tokens a second time
	light.PromptIDs, light.OutputIDs, light.Logprobs = nil, nil, nil
	light.Raw, light.Response = store.Body{}, store.Body{}
	t.call.Result, t.call.Request = &light, store.Body{}

	hasTokens := prompt != nil && output != nil
	var byToken, byWord, mayWord place
	if hasTokens {
		byToken = f.tokens.find(prompt, always, func(i, than int) bool { return f.better(f.tokenTurns[i], f.tokenTurns[than]) })
	}
	var words, bare, said, saidBare []hash
	if readErr == nil {
		words, bare = f.sequence(talk)
		for _, m := range talk.answers[sample] {
			f.keep(m)
			said, saidBare = append(said, m.id), append(saidBare, m.bare)
		}
		better := func(i, than int) bool { return f.better(f.wordTurns[i], f.wordTurns[than]) }
		byWord = f.words.find(words, always, better)
		mayWord = f.words.find(words, func(i int) bool { return !hasTokens || f.turns[f.wordTurns[i]].tokens == none }, better)
		t.parent = f.wordTurn(mayWord.parent)
	}
	if hasTokens && byToken.parent != none {
		// Of a parent by tokens and one by messages the longer one counts.
		if i := f.tokenTurns[byToken.parent]; t.parent == none || f.length(i) >= f.length(t.parent) {
			t.parent = i
		}
	}
	if len(f.turns) > 0 {
		t.split = f.splits(t, split{prompt: prompt, words: words, bare: bare, tokens: byToken, byWord: byWord, hasTokens: hasTokens, err: readErr})
	} else if readErr != nil {
		t.split = &Break{Call: c.ID, Reason: Unreadable}
	}

	i := len(f.turns)
	if hasTokens {
		t.tokens = f.tokens.add(byToken.parent, prompt, output)
		f.tokenTurns = append(f.tokenTurns, i)
		f.check(c, "tokens", f.verify && !slices.Equal(f.tokens.whole(t.tokens), slices.Concat(prompt, output)))
	}
	if readErr == nil {
		t.messages = f.words.add(byWord.parent, words, said)
		f.bare.add(f.bare.find(bare, always, always2).parent, bare, saidBare)
		f.wordTurns = append(f.wordTurns, i)
		f.check(c, "messages", f.verify && !slices.Equal(f.words.whole(t.messages), slices.Concat(words, said)))
		if key := digest(words); !f.hasPrompt(key) {
			f.prompts[key] = i
		}
		if len(words) > 1 {
			f.begins[words[1]] = true
		}
	}
	if t.response != "" {
		f.byID[t.response] = i
	}
	f.turns = append(f.turns, t)
	f.children = append(f.children, 0)
	if t.parent != none {
		f.children[t.parent]++
	}
}

func always(int) bool       { return true }
func always2(int, int) bool { return true }

func (f *forest) check(c store.Call, what string, wrong bool) {
	if wrong {
		f.problems = append(f.problems, fmt.Sprintf("call %q: its %s are not those of its ancestors and its own", c.ID, what))
	}
}

func (f *forest) hasPrompt(key hash) bool {
	_, ok := f.prompts[key]
	return ok
}

// better prefers, of two turns with the same content, the one that the client
// certainly got, and else the later one.
func (f *forest) better(i, than int) bool {
	full, thanFull := f.delivered(i), f.delivered(than)
	return full && !thanFull || full == thanFull && i > than
}

func (f *forest) delivered(i int) bool { return f.turns[i].call.Result.Delivery == store.Full }

func (f *forest) wordTurn(entry int) int {
	if entry == none {
		return none
	}
	return f.wordTurns[entry]
}

// length is the number of messages of a turn, its answer included.
func (f *forest) length(i int) int {
	if e := f.turns[i].messages; e != none {
		return f.words.nodes[e].size()
	}
	return 0
}

// sequence is a prompt as hashes, with thinking and without, the head first. A prompt
// that goes on from a response begins with what that one had.
func (f *forest) sequence(talk conversation) (words, bare []hash) {
	if i, ok := f.byID[talk.previous]; ok && talk.previous != "" && f.turns[i].messages != none {
		words, bare = f.words.whole(f.turns[i].messages), f.bare.whole(f.turns[i].messages)
	} else {
		h := head{tools: talk.tools}
		for _, m := range talk.system {
			h.system = append(h.system, m.json)
		}
		if _, ok := f.heads[talk.head]; !ok {
			f.heads[talk.head] = h
		}
		words, bare = []hash{talk.head}, []hash{talk.head}
	}
	for _, m := range talk.prompt {
		f.keep(m)
		words, bare = append(words, m.id), append(bare, m.bare)
	}
	return words, bare
}

func (f *forest) keep(m message) {
	if _, ok := f.contents[m.id]; !ok {
		f.contents[m.id] = m.json
	}
}

// digest identifies a sequence.
func digest(sequence []hash) hash {
	h := sha256.New()
	for _, x := range sequence {
		h.Write(x[:])
	}
	return hash(h.Sum(nil))
}

// split is what is known of a turn when its break is looked for.
type split struct {
	prompt    []int32
	words     []hash
	bare      []hash
	tokens    place
	byWord    place
	hasTokens bool
	err       error
}

// splits says why t, which is not the first turn, does not simply go on from its
// parent; nil if it does.
func (f *forest) splits(t turn, s split) *Break {
	b := &Break{Call: t.call.ID}
	if t.sample > 0 {
		b.Reason = Sample
		return b
	}
	if s.err != nil {
		if t.parent != none && f.children[t.parent] == 0 {
			return nil // its tokens say that it goes on
		}
		b.Reason = Unreadable
		return b
	}
	follows := f.wordTurn(s.byWord.parent)
	goesOn := t.parent != none && f.children[t.parent] == 0
	if goesOn && (follows == none || f.length(follows) <= f.length(t.parent)) {
		return nil
	}
	near := none
	if s.byWord.near != none { // what has been rewritten is the whole of it
		near = f.wordTurns[f.words.tip(s.byWord.near)]
	}
	if i, ok := f.prompts[digest(s.words)]; ok {
		b.Reason, near = Retry, i
		f.locate(b, near, s.words, len(s.words))
		return b
	}
	if s.hasTokens && follows != none && f.turns[follows].tokens != none && (t.parent == none || f.length(follows) > f.length(t.parent)) {
		b.Reason = Retokenised
		f.locateToken(b, follows, s.prompt)
		return b
	}
	unthinking := f.bare.find(s.bare, always, always2)
	if p := f.wordTurn(unthinking.parent); p != none && (t.parent == none || f.length(p) > f.length(t.parent)) {
		b.Reason = DroppedThinking
		f.locate(b, p, s.words, common(f.words.whole(f.turns[p].messages), s.words))
		return b
	}
	switch {
	case near == none:
		b.Reason = Divergence
		return b
	case s.byWord.common == 0 && len(s.words) > 1 && f.begins[s.words[1]]:
		b.Reason = ChangedHead
	case s.byWord.common == 0:
		b.Reason = SubAgent
	case t.parent == none && len(s.words) < f.length(near):
		b.Reason = Compaction
	default:
		b.Reason = Divergence
	}
	f.locate(b, near, s.words, s.byWord.common)
	return b
}

// locate says where the messages differ.
func (f *forest) locate(b *Break, near int, words []hash, at int) {
	b.Near, b.Unit, b.At = f.turns[near].call.ID, "message", at
	b.Had, b.Have = f.excerpt(f.words.whole(f.turns[near].messages), at), f.excerpt(words, at)
}

// locateToken says where the tokens differ.
func (f *forest) locateToken(b *Break, near int, prompt []int32) {
	whole := f.tokens.whole(f.turns[near].tokens)
	b.Near, b.Unit, b.At = f.turns[near].call.ID, "token", common(whole, prompt)
	if b.At < len(whole) {
		b.Had = encode(whole[b.At])
	}
	if b.At < len(prompt) {
		b.Have = encode(prompt[b.At])
	}
}

// excerpt is the beginning of a message, as a string.
func (f *forest) excerpt(words []hash, at int) json.RawMessage {
	const most = 200
	if at == 0 || at >= len(words) { // the head is too long to show, and soon found
		return nil
	}
	text := f.contents[words[at]]
	return encode(strings.ToValidUTF8(string(text[:min(len(text), most)]), "")) // less half a letter
}
