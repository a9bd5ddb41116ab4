package dialect

import (
	"errors"
	"fmt"
	"slices"

	"roundhouse/internal/wire"
)

// An engine that does not tell the ids of a prompt with its answer may tell them on the
// side (C10): llama.cpp makes the prompt's text of the same request, and ids of that
// text, as it does for the call itself.
//
//	if call.AsksForPrompt() {
//		// beside the call
//		template := answer to call.Body at TemplatePath
//		tokenize, err := call.Tokenize(template)
//		ids, err := ReadTokenized(answer to tokenize at TokenizePath)
//		// with the result of the call
//		if result.NeedsPrompt() {
//			err := result.SetPrompt(ids)
//		}
//	}

// Where an engine is asked on the side, below its base.
const (
	TemplatePath = "/apply-template"
	TokenizePath = "/tokenize"
)

// AsksForPrompt reports whether the ids of the call's prompt are to be had on the side
// alone.
func (c *Call) AsksForPrompt() bool { return c.wantsIDs && c.engine == LlamaCpp && c.api == Chat }

// Tokenize returns the request for the ids of the prompt that the answer to the call's
// body at TemplatePath has.
func (c *Call) Tokenize(template []byte) ([]byte, error) {
	prompt, err := aside(template, "prompt")
	if err != nil {
		return nil, err
	}
	if prompt.kind() != '"' {
		return nil, errors.New("the prompt is no text")
	}
	request := newObject()
	// Behind a router the model says which engine is asked.
	if model := parse(c.Body).get("model"); model != nil {
		request.set("model", model)
	}
	request.set("content", prompt)
	// So it does with the prompt of a call.
	request.set("add_special", &node{raw: []byte("true")})
	request.set("parse_special", &node{raw: []byte("true")})
	return request.append(nil), nil
}

// ReadTokenized reads the ids in the answer to Tokenize.
func ReadTokenized(answer []byte) ([]int32, error) {
	tokens, err := aside(answer, "tokens")
	if err != nil {
		return nil, err
	}
	ids, ok := readIDs(tokens)
	if !ok || len(ids) == 0 {
		return nil, errors.New("the tokens are no ids")
	}
	return ids, nil
}

// aside returns a member of an answer to what was asked on the side.
func aside(answer []byte, name string) (*node, error) {
	if wire.Valid(answer) != nil {
		return nil, errors.New("the answer is no JSON")
	}
	root := parse(answer)
	if root.kind() != '{' || isNullNode(root.get(name)) {
		return nil, fmt.Errorf("the answer has no member %q", name)
	}
	return root.get(name), nil
}

// NeedsPrompt reports whether the result lacks the ids of the prompt alone.
func (r *Result) NeedsPrompt() bool {
	return r.Outcome.Good() && len(r.Tokens) == 1 && r.Tokens[0].Prompt == nil
}

// SetPrompt adds the prompt's ids, which came on the side, to a result that needs them.
// They count only if they are as many as the engine counted for the call.
func (r *Result) SetPrompt(ids []int32) error {
	if int64(len(ids)) != r.Usage.Input {
		return fmt.Errorf("the engine made %d tokens of the prompt on the side, and %d for the call", len(ids), r.Usage.Input)
	}
	r.Tokens[0].Prompt = ids
	r.Flags = slices.DeleteFunc(r.Flags, func(flag string) bool { return flag == FlagNoPromptIDs })
	return nil
}
