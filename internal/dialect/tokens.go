package dialect

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// tokensOf reads what an answer tells of tokens, wherever engines put it. ok is false
// if what it tells does not fit together.
func tokensOf(api API, root *node) (tokens []Tokens, ok bool) {
	switch api {
	case Chat:
		for _, choice := range root.get("choices").items() {
			t, ok := choiceTokens(root, choice)
			if !ok {
				return nil, false
			}
			tokens = append(tokens, t)
		}
	case Messages:
		t, ok := choiceTokens(root, nil)
		if !ok {
			return nil, false
		}
		tokens = append(tokens, t)
	}
	for _, t := range tokens {
		if t.Output == nil {
			return nil, true
		}
	}
	return tokens, true
}

// choiceTokens reads the tokens of one choice. All that tells the same must agree.
func choiceTokens(root, choice *node) (Tokens, bool) {
	var t Tokens
	fits := true
	ids := func(n *node) []int32 {
		list, ok := readIDs(n)
		fits = fits && ok
		return list
	}
	t.Prompt = ids(either(choice, root, "prompt_token_ids"))
	told := [][]int32{ids(either(choice, root, "token_ids")), ids(either(choice, root, "output_ids"))}
	var logs [][]float64
	for _, n := range []*node{either(choice, root, "output_token_logprobs"), choice.get("meta_info").get("output_token_logprobs")} {
		list, values, ok := readPairs(n)
		fits = fits && ok
		told, logs = append(told, list), append(logs, values)
	}
	list, values, ok := readLogprobs(choice.get("logprobs").get("content"))
	fits = fits && ok
	told, logs = append(told, list), append(logs, values)
	for _, list := range told {
		switch {
		case list == nil:
		case t.Output == nil:
			t.Output = list
		case !slices.Equal(t.Output, list):
			fits = false
		}
	}
	for _, values := range logs {
		if t.Logprobs == nil {
			t.Logprobs = values
		}
	}
	for _, holder := range []*node{choice, root, choice.get("sglext"), root.get("sglext")} {
		if experts := holder.get("routed_experts"); t.Experts == nil && !isNullNode(experts) {
			t.Experts = experts.append(nil)
		}
	}
	if t.Output != nil && t.Logprobs != nil && len(t.Output) != len(t.Logprobs) {
		fits = false
	}
	return t, fits
}

// either returns the member of a choice, or else that of the whole answer.
func either(choice, root *node, key string) *node {
	if n := choice.get(key); !isNullNode(n) {
		return n
	}
	return root.get(key)
}

func readID(n *node) (int32, bool) {
	id, ok := n.integer()
	return int32(id), ok && id >= 0 && id <= math.MaxInt32
}

func readNumber(n *node) (float64, bool) {
	if n.kind() != '0' {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(n.raw), 64)
	return f, err == nil
}

// readIDs reads a list of ids, nil if there is none.
func readIDs(n *node) ([]int32, bool) {
	if isNullNode(n) {
		return nil, true
	}
	if n.kind() != '[' {
		return nil, false
	}
	ids := make([]int32, 0, len(n.items()))
	for _, e := range n.items() {
		id, ok := readID(e)
		if !ok {
			return nil, false
		}
		ids = append(ids, id)
	}
	return ids, true
}

// readPairs reads a list of pairs of a logprob and an id.
func readPairs(n *node) (ids []int32, logprobs []float64, ok bool) {
	if isNullNode(n) {
		return nil, nil, true
	}
	if n.kind() != '[' {
		return nil, nil, false
	}
	ids, logprobs = []int32{}, []float64{}
	for _, e := range n.items() {
		pair := e.items()
		if len(pair) < 2 {
			return nil, nil, false
		}
		id, idOK := readID(pair[1])
		logprob, logprobOK := readNumber(pair[0])
		if !idOK || !logprobOK {
			return nil, nil, false
		}
		ids, logprobs = append(ids, id), append(logprobs, logprob)
	}
	return ids, logprobs, true
}

// readLogprobs reads OpenAI's list of logprobs. It has ids if the engine puts them
// there, as a member or as the token's text; if some lack theirs, the lists are of
// different lengths.
func readLogprobs(n *node) (ids []int32, logprobs []float64, ok bool) {
	list := n.items()
	for _, e := range list {
		logprob, ok := readNumber(e.get("logprob"))
		if !ok {
			return nil, nil, false
		}
		logprobs = append(logprobs, logprob)
		id, found := readID(e.get("id"))
		if digits, is := strings.CutPrefix(e.get("token").str(), "token_id:"); !found && is {
			n, err := strconv.ParseUint(digits, 10, 31)
			id, found = int32(n), err == nil
		}
		if found {
			ids = append(ids, id)
		}
	}
	return ids, logprobs, true
}
