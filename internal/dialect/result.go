package dialect

import (
	"encoding/json"
	"slices"
)

// Outcome is what an answer was worth. The words are those of C7; the others of that
// list are not an answer's to know.
type Outcome string

const (
	// Complete answers ended as the API says.
	Complete Outcome = "complete"
	// Truncated answers ended as the API says, at a limit.
	Truncated Outcome = "truncated"
	// UpstreamError answers report an error, or a reason to end that is none.
	UpstreamError Outcome = "upstream_error"
	// UpstreamCut answers ended before their end.
	UpstreamCut Outcome = "upstream_cut"
	// Unparsed answers could not be read.
	Unparsed Outcome = "unparsed"
)

// Good reports whether the answer is one that the client may have and a trainer may
// use.
func (o Outcome) Good() bool { return o == Complete || o == Truncated }

// Flags tell what is peculiar about an answer.
const (
	FlagContentFilter = "content_filter" // the API's filter ended it
	FlagRefusal       = "refusal"        // the model refused
	FlagPauseTurn     = "pause_turn"     // the client is to let the model go on
	FlagEmpty         = "empty"          // it says nothing although tokens were counted
	FlagBadToolJSON   = "bad_tool_json"  // a tool's arguments are no JSON
	FlagRepaired      = "repaired"       // blocks were not closed, or opened twice
	FlagAfterEnd      = "after_end"      // something came behind the end, and was dropped
	FlagChoices       = "choices"        // there are several
	FlagBackground    = "background"     // the answer is yet to be generated
	FlagNoTokens      = "no_tokens"      // the engine has token ids, and told none
	FlagNoPromptIDs   = "no_prompt_ids"  // it told only those of the answer
	FlagTokenMismatch = "token_mismatch" // what it told of tokens does not fit together
)

// Tokens are the tokens of one choice, exactly as the engine told them.
type Tokens struct {
	// Prompt has the ids of the prompt, nil if the engine does not tell.
	Prompt []int32
	// Output has the ids that were sampled.
	Output []int32
	// Logprobs are those of Output, one each, nil if the engine does not tell.
	Logprobs []float64
	// Experts is which experts of a mixture were used, in the engine's own form; nil
	// if it does not tell.
	Experts json.RawMessage `json:",omitempty"`
}

// Usage counts tokens as the engine did, -1 where it does not say.
type Usage struct {
	Input, Output int64
}

// Result is what an answer came to.
type Result struct {
	Outcome Outcome
	// Reason says in words why the outcome is not Complete; "" if it is.
	Reason string
	// Finish is the API's own word for why the answer ended: of the first choice, the
	// message or the response. "" if it was not said.
	Finish string
	// Model is the model that answered, as it calls itself.
	Model string
	Usage Usage
	// Weights is the version of the weights that answered, "" if the engine does not tell.
	Weights string
	// Flags has what is peculiar, in no order; each at most once.
	Flags []string
	// Response is the answer as the same call would have given it without a stream, as
	// far as it came, and as the client may see it. nil if nothing came that could be
	// read.
	Response []byte
	// Tokens has what the engine told of tokens, by choice; nil if it told nothing, or
	// what it told does not fit together.
	Tokens []Tokens

	// Tail is what the client is yet to be sent: the rest of a stream, or the whole of
	// any other answer.
	Tail []byte
	// Release tells that Tail may be sent, once the turn is stored. If not, a native
	// error takes its place.
	Release bool
	// Abort tells that after Tail the connection is to be aborted rather than ended,
	// lest a client take the answer for good (A.10). A lenient stream is aborted only
	// if the upstream's was.
	Abort bool
}

func (r *Result) flag(flags ...string) {
	for _, f := range flags {
		if !slices.Contains(r.Flags, f) {
			r.Flags = append(r.Flags, f)
		}
	}
}

// worsen takes the worse of two outcomes.
func (r *Result) worsen(o Outcome, reason string) {
	order := []Outcome{Complete, Truncated, UpstreamCut, UpstreamError, Unparsed}
	if slices.Index(order, o) > slices.Index(order, r.Outcome) {
		r.Outcome, r.Reason = o, reason
	}
}

// isError reports whether an answer, or an event of one, is an error (A.7).
func isError(root *node) bool {
	return !isNullNode(root.get("error")) || root.get("type").is("error") || root.get("object").is("error")
}

// errorText returns what an error says.
func errorText(root *node) string {
	for _, n := range []*node{root.get("error").get("message"), root.get("message"), root.get("error")} {
		if text := n.str(); text != "" {
			return "the upstream reports an error: " + text
		}
	}
	return "the upstream reports an error"
}

// judge reads the verdict off an answer that is not a stream, or is not any more.
func judge(api API, root *node) *Result {
	r := &Result{Outcome: Complete, Usage: Usage{-1, -1}, Model: root.get("model").str()}
	switch {
	case isError(root):
		r.worsen(UpstreamError, errorText(root))
	case api == Chat:
		judgeChat(r, root)
	case api == Messages:
		judgeMessage(r, root)
	default:
		judgeResponse(r, root)
	}
	return r
}

// count reads the number of tokens in a usage object.
func count(usage *node, names ...string) int64 {
	for _, name := range names {
		if n, ok := usage.get(name).integer(); ok {
			return n
		}
	}
	return -1
}
