package config

import (
	"encoding/json"
	"fmt"
)

// A schema is one JSON Schema as it is marshalled.
type schema map[string]any

// Schema returns the JSON Schema (draft 2020-12) of the configuration file, with
// the default, the unit and a description of every setting. Keys that other hosts
// write are allowed beside ours at the top level and in server entries, as they
// are in the file; roundhouse's own sections are closed. The schema does not
// mention that null is the same as absent in a server entry.
func Schema() []byte {
	defaults := document{Config: *Defaults()}
	defaults.StateDir = "" // It differs from user to user; the description says how.
	root := documentObject.schema(&defaults)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Roundhouse configuration"
	root["anyOf"] = []schema{{"required": []string{"mcpServers"}}, {"required": []string{"servers"}}, {"required": []string{"llm"}}}
	root["$defs"] = schema{
		"duration": schema{"type": "string", "description": "A duration with its unit, such as \"500ms\", \"30s\", \"5m\" or \"24h\".", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`},
		"server":   entryObject.schema(&entry{Server: newServer("")}),
	}
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("config: the schema cannot be marshalled: %v", err))
	}
	return append(text, '\n')
}

// schema describes the object. It is open when unknown keys are no errors.
func (o object[T]) schema(defaults *T) schema {
	properties := schema{}
	for _, f := range o.fields {
		s := f.kind.schema(defaults)
		if s == nil {
			continue
		}
		s["description"] = f.doc
		properties[f.name] = s
		for _, alias := range f.aliases {
			properties[alias] = schema{"$ref": fmt.Sprintf("#/$defs/server/properties/%s", f.name), "description": fmt.Sprintf("Another spelling of %q.", f.name)}
		}
	}
	return schema{"type": "object", "properties": properties, "additionalProperties": o.others != closed}
}

// withDefault adds a default unless it is the empty text.
func withDefault(s schema, text string) schema {
	if text != "" {
		s["default"] = text
	}
	return s
}

func (k plain[T]) schema(defaults *T) schema {
	return withDefault(schema{"type": "string"}, *k.at(defaults))
}

func (k text[T]) schema(defaults *T) schema {
	return withDefault(schema{"type": "string"}, *k.at(defaults))
}

func (hidden[T]) schema(*T) schema { return schema{"type": "string"} }

func (k flag[T]) schema(defaults *T) schema {
	return schema{"type": "boolean", "default": *k.at(defaults)}
}

func (k count[T]) schema(defaults *T) schema {
	s := schema{"type": "integer", "minimum": k.least()}
	if n := *k.at(defaults); k.zero || n > 0 {
		s["default"] = n
	}
	return s
}

func (k inherited[T]) schema(defaults *T) schema {
	s := k.kind.schema(defaults)
	delete(s, "default")
	return s
}

func (k size[T]) schema(defaults *T) schema {
	return schema{
		"anyOf":   []schema{{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+(KiB|MiB|GiB)$"}},
		"default": formatSize(*k.at(defaults)),
	}
}

func (k duration[T]) schema(defaults *T) schema {
	return schema{"$ref": "#/$defs/duration", "default": formatDuration(*k.at(defaults))}
}

func (k choice[T, C]) schema(defaults *T) schema {
	return withDefault(schema{"enum": asStrings(k.options)}, string(*k.at(defaults)))
}

func (k list[T, S]) schema(defaults *T) schema {
	s := schema{"type": "array", "items": k.items}
	if d := *k.at(defaults); d != nil {
		s["default"] = d
	}
	return s
}

func (k custom[T]) schema(defaults *T) schema {
	if k.shape == nil {
		return nil
	}
	return k.shape(defaults)
}
