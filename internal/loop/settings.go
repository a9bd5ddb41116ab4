package loop

import (
	"encoding/json"
	"fmt"
	"strings"

	"roundhouse/internal/config"
)

// chatSettings puts the settings of a Responses request into a request for a chat
// completion. spent is how many tokens of max_output_tokens are spent.
func chatSettings(body map[string]any, settings map[string]json.RawMessage, engine string, spent int64) error {
	for name, value := range settings {
		if string(value) == "null" {
			continue
		}
		switch name {
		case "max_output_tokens":
			var most int64
			if err := json.Unmarshal(value, &most); err != nil || most < 1 {
				return fmt.Errorf("max_output_tokens must be a positive integer")
			}
			key := "max_tokens"
			if engine == config.EngineOpenAI {
				key = "max_completion_tokens"
			}
			body[key] = max(1, most-spent)
		case "top_logprobs":
			var n int
			if err := json.Unmarshal(value, &n); err != nil {
				return fmt.Errorf("top_logprobs must be an integer")
			}
			if n > 0 {
				body["logprobs"], body[name] = true, n
			}
		case "reasoning":
			var r struct {
				Effort json.RawMessage `json:"effort"`
			}
			if err := json.Unmarshal(value, &r); err != nil {
				return fmt.Errorf("reasoning must be an object")
			}
			if len(r.Effort) > 0 && string(r.Effort) != "null" {
				body["reasoning_effort"] = r.Effort
			}
		case "text":
			if err := chatFormat(body, value); err != nil {
				return err
			}
		default:
			for had := range body {
				if strings.EqualFold(had, name) {
					return fmt.Errorf("%q cannot be set in a request of this API", name)
				}
			}
			body[name] = value
		}
	}
	return nil
}

// chatFormat puts "text" there: in which form the model is to answer, and at what length.
func chatFormat(body map[string]any, value json.RawMessage) error {
	var t struct {
		Format    map[string]json.RawMessage `json:"format"`
		Verbosity json.RawMessage            `json:"verbosity"`
	}
	if err := json.Unmarshal(value, &t); err != nil {
		return fmt.Errorf("text must be an object: %w", err)
	}
	if len(t.Verbosity) > 0 && string(t.Verbosity) != "null" && string(t.Verbosity) != `"medium"` {
		body["verbosity"] = t.Verbosity
	}
	switch kind := string(t.Format["type"]); kind {
	case "", `"text"`:
	case `"json_object"`:
		body["response_format"] = map[string]string{"type": "json_object"}
	case `"json_schema"`:
		schema := map[string]json.RawMessage{}
		for _, name := range []string{"name", "description", "schema", "strict"} {
			if v := t.Format[name]; len(v) > 0 {
				schema[name] = v
			}
		}
		body["response_format"] = map[string]any{"type": "json_schema", "json_schema": schema}
	default:
		return fmt.Errorf("text.format: the type %.50s is not supported", kind)
	}
	return nil
}
