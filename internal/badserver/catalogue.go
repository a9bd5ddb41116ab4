package badserver

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// item is one entry of a list: a tool, prompt, resource or resource template.
type item struct {
	name string // the URI of a resource
	json string
}

// newCatalogue returns the lists as the switches want them.
func newCatalogue(opts *options) map[string][]item {
	c := map[string][]item{
		"prompts": {
			{"greeting", `{"name":"greeting","title":"Greeting","description":"Greets somebody.","arguments":[{"name":"who","required":true}]}`},
			{"summary", `{"name":"summary","description":"Asks for a summary.","_meta":{"x-n":9007199254740993}}`},
		},
		"resources": {
			{"bad://static/1", `{"uri":"bad://static/1","name":"one","mimeType":"text/plain"}`},
			{"bad://static/2", `{"uri":"bad://static/2","name":"two","mimeType":"application/json","size":9007199254740993}`},
			{"bad://static/3", `{"uri":"bad://static/3","name":"three","mimeType":"image/png"}`},
		},
		"templates": {
			{"bad://item/{id}", `{"uriTemplate":"bad://item/{id}","name":"item","mimeType":"text/plain"}`},
		},
	}
	for _, t := range tools {
		c["tools"] = append(c["tools"], item{t.name, t.definition()})
	}
	for i := range opts.tools {
		c["tools"] = append(c["tools"], newItem("tools", fmt.Sprintf("extra_%04d", i)))
	}
	if opts.oddNames {
		for _, name := range OddNames() {
			c["tools"] = append(c["tools"], newItem("tools", name))
		}
	}
	want := opts.pages * pageSize(opts)
	for i := len(c["tools"]); i < want; i++ {
		c["tools"] = append(c["tools"], newItem("tools", fmt.Sprintf("page_%04d", i)))
	}
	for i := len(c["resources"]); i < want; i++ {
		c["resources"] = append(c["resources"], newItem("resources", fmt.Sprintf("bad://page/%04d", i)))
	}
	return c
}

// OddNames returns the tool names that -odd-names adds: longer than 64
// characters, two that differ only after character 60, dotted, spaced, CJK,
// with a slash, and two that differ only in case.
func OddNames() []string {
	sixty := strings.Repeat("abcdefghij", 6)
	return []string{
		strings.Repeat("long_name_", 10),
		sixty + "_one", sixty + "_two",
		"calendar.read", "two words", "日本語の道具", "a/b", "Case", "case",
	}
}

func newItem(kind, name string) item {
	switch quoted := quote(name); kind {
	case "prompts":
		return item{name, fmt.Sprintf(`{"name":%s,"description":"Added."}`, quoted)}
	case "resources":
		return item{name, fmt.Sprintf(`{"uri":%s,"name":%s}`, quoted, quoted)}
	default:
		return item{name, fmt.Sprintf(`{"name":%s,"description":"Answers with its name and arguments.","inputSchema":{"type":"object"}}`, quoted)}
	}
}

// pageSize returns the size of a page, 0 for lists in one piece.
func pageSize(opts *options) int {
	if opts.pageSize == 0 && opts.pages > 0 {
		return defaultPageSize
	}
	return opts.pageSize
}

// visible returns the items of a kind that this client sees.
func (s *server) visible(kind string) []item {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.items[kind])
	var caps struct{ Sampling json.RawMessage }
	if s.caps != nil {
		_ = json.Unmarshal(s.caps, &caps) // Odd capabilities declare no sampling.
	}
	if kind == "tools" && s.opts.shapeByCaps && caps.Sampling != nil {
		all = append(all, newItem("tools", "sampled"))
	}
	return all
}

// list answers a list request; member is the name of the array in the result.
func (s *server) list(kind, member string, params json.RawMessage) ([]byte, error) {
	if s.listFails(kind) {
		return nil, &rpcError{-32603, "the list of " + kind + " is broken"}
	}
	var p struct{ Cursor *string }
	if params != nil {
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, invalidParams("%v", err)
		}
	}
	all := s.visible(kind)
	if s.opts.loopCursor {
		return listPage(member, all, "again"), nil
	}
	from := 0
	if p.Cursor != nil {
		n, err := strconv.Atoi(strings.TrimPrefix(*p.Cursor, "from-"))
		if err != nil || n < 0 || n > len(all) {
			return nil, invalidParams("unknown cursor %q", *p.Cursor)
		}
		from = n
	}
	all = all[from:]
	if size := pageSize(s.opts); size > 0 && len(all) > size {
		return listPage(member, all[:size], fmt.Sprintf("from-%d", from+size)), nil
	}
	return listPage(member, all, ""), nil
}

// listFails counts a list request and reports whether the switches fail it.
func (s *server) listFails(kind string) bool {
	if !slices.Contains(s.opts.failList, kind) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists[kind]++
	n := s.lists[kind] - s.opts.failListAfter
	return n > 0 && (s.opts.failListTimes == 0 || n <= s.opts.failListTimes)
}

func listPage(member string, items []item, next string) []byte {
	texts := make([]string, len(items))
	for i, it := range items {
		texts[i] = it.json
	}
	end := "}"
	if next != "" {
		end = fmt.Sprintf(`,"nextCursor":%q}`, next)
	}
	return fmt.Appendf(nil, `{%q:[%s]%s`, member, strings.Join(texts, ","), end)
}

// change adds an item to a list or removes it, and says so to the client.
func (s *server) change(kind, name string, add bool) {
	s.mu.Lock()
	kept := slices.DeleteFunc(slices.Clone(s.items[kind]), func(it item) bool { return it.name == name })
	if add {
		kept = append(kept, newItem(kind, name))
	}
	s.items[kind] = kept
	s.mu.Unlock()
	s.out.notify("notifications/"+kind+"/list_changed", `{}`)
}

// has reports whether the client sees an item of that name.
func (s *server) has(kind, name string) bool {
	return slices.ContainsFunc(s.visible(kind), func(it item) bool { return it.name == name })
}

func (s *server) getPrompt(params json.RawMessage) ([]byte, error) {
	var p struct {
		Name      string
		Arguments json.RawMessage
	}
	if err := json.Unmarshal(params, &p); err != nil || !s.has("prompts", p.Name) {
		return nil, invalidParams("unknown prompt %q", p.Name)
	}
	text := quote(fmt.Sprintf("prompt %s %s", p.Name, p.Arguments))
	return fmt.Appendf(nil, `{"description":%s,"messages":[{"role":"user","content":{"type":"text","text":%s}}]}`, quote(p.Name), text), nil
}

func (s *server) readResource(params json.RawMessage) ([]byte, error) {
	var p struct{ URI string }
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, invalidParams("%v", err)
	}
	uri := quote(p.URI)
	switch {
	case p.URI == "bad://static/3":
		return fmt.Appendf(nil, `{"contents":[{"uri":%s,"mimeType":"image/png","blob":"iVBORw0KGgo="}]}`, uri), nil
	case s.has("resources", p.URI), strings.HasPrefix(p.URI, "bad://item/"):
		return fmt.Appendf(nil, `{"contents":[{"uri":%s,"mimeType":"text/plain","text":%s}]}`, uri, quote("content of "+p.URI)), nil
	}
	return nil, &rpcError{-32002, "resource not found: " + p.URI}
}

// complete completes every argument from the same few words.
func complete(params json.RawMessage) ([]byte, error) {
	var p struct{ Argument struct{ Name, Value string } }
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, invalidParams("%v", err)
	}
	var found []string
	for _, word := range []string{"alpha", "alphabet", "beta"} {
		if strings.HasPrefix(word, p.Argument.Value) {
			found = append(found, quote(word))
		}
	}
	return fmt.Appendf(nil, `{"completion":{"values":[%s],"total":%d,"hasMore":false}}`, strings.Join(found, ","), len(found)), nil
}
