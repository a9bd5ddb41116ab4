package loop

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"roundhouse/internal/config"
)

// chatBody is a request for a chat completion that settings are put into.
type chatBody struct {
	members map[string]any
	from    map[string]string // which setting a member, in lower case, came from; "" is none
}

// take notes that a member comes from a setting. It is an error if it is there already: of two
// that mean the same neither is chosen by chance.
func (b *chatBody) take(member, setting string) error {
	member = strings.ToLower(member)
	other, had := b.from[member]
	switch {
	case had && other == "":
		return fmt.Errorf("%q cannot be set in a request of this API", setting)
	case had:
		return fmt.Errorf("%q and %q mean the same; send one of them", other, setting)
	}
	b.from[member] = setting
	return nil
}

// set puts a member there.
func (b *chatBody) set(member, setting string, value any) error {
	if err := b.take(member, setting); err != nil {
		return err
	}
	b.members[member] = value
	return nil
}

// chatSettings puts the settings of a Responses request into a request for a chat
// completion. spent is how many tokens of max_output_tokens are spent.
func chatSettings(body map[string]any, settings map[string]json.RawMessage, engine string, spent int64) error {
	b := &chatBody{body, map[string]string{}}
	for member := range body {
		b.from[strings.ToLower(member)] = ""
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if value := settings[name]; string(value) != "null" {
			if err := b.setting(name, value, engine, spent); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *chatBody) setting(name string, value json.RawMessage, engine string, spent int64) error {
	switch name {
	case "max_output_tokens":
		var most int64
		if err := json.Unmarshal(value, &most); err != nil || most < 1 {
			return errors.New("max_output_tokens must be a positive integer")
		}
		key, twin := "max_tokens", "max_completion_tokens"
		if engine == config.EngineOpenAI {
			key, twin = twin, key
		}
		if err := b.take(twin, name); err != nil {
			return err
		}
		return b.set(key, name, max(1, most-spent))
	case "top_logprobs":
		var n int
		if err := json.Unmarshal(value, &n); err != nil {
			return errors.New("top_logprobs must be an integer")
		}
		if n < 1 {
			return nil
		}
		if err := b.set("logprobs", name, true); err != nil {
			return err
		}
		return b.set(name, name, n)
	case "include": // a chat completion has nothing of it
		return nil
	case "access_programs":
		return fmt.Errorf("%s is not supported by an upstream of chat completions", name)
	case "image":
		return b.image(value)
	case "reasoning":
		return b.reasoning(value)
	case "text":
		return b.format(value)
	}
	return b.set(name, name, value)
}

// image reads "image": no picture is compressed on its way to a chat completion.
func (b *chatBody) image(value json.RawMessage) error {
	var v struct {
		Compression string `json:"context_compression"`
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return errors.New("image must be an object")
	}
	if v.Compression == "enabled" {
		return errors.New("image.context_compression is not supported by an upstream of chat completions")
	}
	return nil
}

// reasoning puts "reasoning" there, of which chat completions have the effort.
func (b *chatBody) reasoning(value json.RawMessage) error {
	var r struct {
		Effort  json.RawMessage `json:"effort"`
		Context *string         `json:"context"`
		Mode    *string         `json:"mode"`
	}
	if err := json.Unmarshal(value, &r); err != nil {
		return errors.New("reasoning must be an object")
	}
	if r.Context != nil && *r.Context != "auto" {
		return fmt.Errorf("reasoning.context: %.50q is not supported by an upstream of chat completions", *r.Context)
	}
	if r.Mode != nil && *r.Mode != "standard" {
		return fmt.Errorf("reasoning.mode: %.50q is not supported by an upstream of chat completions", *r.Mode)
	}
	if len(r.Effort) == 0 || string(r.Effort) == "null" {
		return nil
	}
	return b.set("reasoning_effort", "reasoning", r.Effort)
}

// format puts "text" there: in which form the model is to answer, and at what length.
func (b *chatBody) format(value json.RawMessage) error {
	var t struct {
		Format    map[string]json.RawMessage `json:"format"`
		Verbosity json.RawMessage            `json:"verbosity"`
	}
	if err := json.Unmarshal(value, &t); err != nil {
		return fmt.Errorf("text must be an object: %w", err)
	}
	if len(t.Verbosity) > 0 && string(t.Verbosity) != "null" && string(t.Verbosity) != `"medium"` {
		if err := b.set("verbosity", "text", t.Verbosity); err != nil {
			return err
		}
	}
	switch kind := string(t.Format["type"]); kind {
	case "", `"text"`:
		return nil
	case `"json_object"`:
		return b.set("response_format", "text", map[string]string{"type": "json_object"})
	case `"json_schema"`:
		schema := map[string]json.RawMessage{}
		for _, name := range []string{"name", "description", "schema", "strict"} {
			if v := t.Format[name]; len(v) > 0 {
				schema[name] = v
			}
		}
		return b.set("response_format", "text", map[string]any{"type": "json_schema", "json_schema": schema})
	default:
		return fmt.Errorf("text.format: the type %.50s is not supported", kind)
	}
}
