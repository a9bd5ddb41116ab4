package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse/internal/mux"
	"roundhouse/internal/wire"
)

// Kind is one of a server's lists.
type Kind int

// The lists.
const (
	Tools Kind = iota
	Prompts
	Resources
	Templates
	kinds
)

var kindInfo = [kinds]struct {
	method, member, key, capability string
	list                            mux.List
}{
	Tools:     {wire.ToolsList, "tools", "name", "tools", mux.Tools},
	Prompts:   {wire.PromptsList, "prompts", "name", "prompts", mux.Prompts},
	Resources: {wire.ResourcesList, "resources", "uri", "resources", mux.Resources},
	Templates: {wire.ResourcesTemplatesList, "resourceTemplates", "uriTemplate", "resources", mux.Resources},
}

// String returns the list's member name in a result, such as "tools".
func (k Kind) String() string { return kindInfo[k].member }

// KindOf returns the list that a method asks for.
func KindOf(method string) (Kind, bool) {
	for k, info := range kindInfo {
		if info.method == method {
			return Kind(k), true
		}
	}
	return 0, false
}

// Item is one entry of a list, as the server sent it.
type Item struct {
	Key     string    // the tool's or prompt's name, the resource's URI or template
	Raw     []byte    // the whole JSON object; read-only
	KeySpan wire.Span // of the key's value in Raw
}

// Listing is one list as it was last read. It is read-only.
type Listing struct {
	Items []Item
	Raw   []byte // the server's whole result when it came in one page, else nil
}

// Result returns the listing as a list result.
func (l *Listing) Result(k Kind) []byte {
	if l.Raw != nil {
		return l.Raw
	}
	size := 32
	for _, it := range l.Items {
		size += len(it.Raw) + 1
	}
	b := make([]byte, 0, size)
	b = append(append(append(b, `{"`...), kindInfo[k].member...), `":[`...)
	for i, it := range l.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, it.Raw...)
	}
	return append(b, "]}"...)
}

// Only returns the listing with the items that keep lets through; it is l itself
// when that is all of them.
func (l *Listing) Only(keep func(key string) bool) *Listing {
	if !slices.ContainsFunc(l.Items, func(it Item) bool { return !keep(it.Key) }) {
		return l
	}
	out := &Listing{}
	for _, it := range l.Items {
		if keep(it.Key) {
			out.Items = append(out.Items, it)
		}
	}
	return out
}

const (
	maxPages        = 1000                   // V2
	refetchDebounce = 50 * time.Millisecond  // V1: the first wait after a change
	refetchPause    = 250 * time.Millisecond // V1: the wait when changes keep coming
	refetchTimeout  = time.Minute            // for one list after the start
	staleTimeout    = 5 * time.Second        // for another try while an older list is at hand
)

// catalogue is what a connection's server lists. A list that could not be read
// keeps its last state (R9); one never read has an error.
type catalogue struct {
	fetch   func(ctx context.Context, k Kind, cursor []byte) ([]byte, error) // one page's raw result
	changed func(k Kind)                                                     // after a list was replaced by a different one
	usable  func(k Kind, item Item) bool                                     // whether it is listed; set before load, nil lists all

	// Guarded by mu, which may be taken with Pool.mu held, never the other way.
	mu    sync.Mutex
	lists [kinds]*Listing
	errs  [kinds]error
	dirty [kinds]bool
	busy  bool // a refresher runs
}

// load reads the lists of the given kinds, at the same time. In the place of one
// that cannot be read stands what it was before (R9).
func (c *catalogue) load(ctx context.Context, ks []Kind, before [kinds]*Listing) {
	var wg sync.WaitGroup
	for _, k := range ks {
		wg.Go(func() {
			l, err := c.read(ctx, k)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lists[k], c.errs[k] = l, err
			if err != nil {
				c.lists[k] = before[k]
			}
		})
	}
	wg.Wait()
}

// get returns a list, trying again when it could not be read last time; if that
// fails too it is the older one, if there is any (R9).
func (c *catalogue) get(ctx context.Context, k Kind) (*Listing, error) {
	c.mu.Lock()
	old, failed := c.lists[k], c.errs[k] != nil
	c.mu.Unlock()
	if old != nil && !failed {
		return old, nil
	}
	if old != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, staleTimeout)
		defer cancel()
	}
	l, err := c.read(ctx, k)
	c.mu.Lock()
	switch now := c.lists[k]; {
	case now != old: // somebody was quicker, and a change may have come since we asked
		c.mu.Unlock()
		return now, nil
	case err != nil:
		c.errs[k] = err
		c.mu.Unlock()
		if old != nil {
			return old, nil
		}
		return nil, err
	}
	c.lists[k], c.errs[k] = l, nil
	c.mu.Unlock()
	if !same(old, l) {
		c.changed(k) // for those who got the older one, or none
	}
	return l, nil
}

// differs returns the lists that are not what they were before.
func (c *catalogue) differs(before [kinds]*Listing) []mux.List {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lists []mux.List
	for k, l := range c.lists {
		if list := kindInfo[k].list; !same(before[k], l) && !slices.Contains(lists, list) {
			lists = append(lists, list)
		}
	}
	return lists
}

// peek returns what is known of a list without asking the server; nil if nothing is.
func (c *catalogue) peek(k Kind) *Listing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists[k]
}

// mark notes that lists changed and reports whether the caller must run refresh.
func (c *catalogue) mark(list mux.List) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, info := range kindInfo {
		if info.list == list {
			c.dirty[k] = true
		}
	}
	if c.busy {
		return false
	}
	c.busy = true
	return true
}

// refresh reads what is dirty again until nothing is (V1): once after a short
// pause however many changes were announced meanwhile.
func (c *catalogue) refresh(ctx context.Context) {
	wait := refetchDebounce
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		c.mu.Lock()
		var todo []Kind
		for k, d := range c.dirty {
			if d {
				todo = append(todo, Kind(k))
			}
		}
		if len(todo) == 0 || ctx.Err() != nil {
			c.busy = false
			c.mu.Unlock()
			return
		}
		c.dirty = [kinds]bool{}
		c.mu.Unlock()
		told := map[mux.List]bool{}
		for _, k := range todo {
			if c.reread(ctx, k) && !told[kindInfo[k].list] {
				told[kindInfo[k].list] = true
				c.changed(k)
			}
		}
		wait = refetchPause
	}
}

// reread replaces one list and reports whether it differs.
func (c *catalogue) reread(ctx context.Context, k Kind) bool {
	ctx, cancel := context.WithTimeout(ctx, refetchTimeout)
	defer cancel()
	l, err := c.read(ctx, k)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs[k] = err
	if err != nil {
		return false // R9: the old list stays
	}
	old := c.lists[k]
	c.lists[k] = l
	return !same(old, l)
}

// same reports whether two listings are equal; nil is one that there is not.
func same(a, b *Listing) bool {
	if a == nil || b == nil {
		return a == b
	}
	return bytes.Equal(a.Raw, b.Raw) && slices.EqualFunc(a.Items, b.Items, func(x, y Item) bool { return bytes.Equal(x.Raw, y.Raw) })
}

// read fetches all pages of a list (V2).
func (c *catalogue) read(ctx context.Context, k Kind) (*Listing, error) {
	l := &Listing{}
	seen := map[string]bool{}
	var cursor []byte
	for page := 1; ; page++ {
		raw, err := c.fetch(ctx, k, cursor)
		if err != nil {
			return nil, err
		}
		items, next, whole, err := parsePage(k, raw)
		if err != nil {
			return nil, fmt.Errorf("read page %d of %s: %w", page, k, err)
		}
		for _, it := range items {
			if c.usable == nil || c.usable(k, it) {
				l.Items = append(l.Items, it)
			} else {
				whole = false
			}
		}
		if next == nil {
			if page == 1 && whole {
				l.Raw = raw
			}
			return l, nil
		}
		if seen[string(next)] {
			return nil, fmt.Errorf("the server repeats the cursor %s of %s for ever", next, k)
		}
		if page == maxPages {
			return nil, fmt.Errorf("%s has more than %d pages", k, maxPages)
		}
		seen[string(next)] = true
		cursor = next
	}
}

// parsePage takes one list result apart. An item whose key cannot be read, or
// stands there twice or in another case, is left out. whole is false then, and when
// that is so of the list itself: what was checked must be what is sent (W2).
func parsePage(k Kind, raw []byte) (items []Item, next []byte, whole bool, err error) {
	whole = true
	info := kindInfo[k]
	var list []byte
	for m, err := range wire.Members(raw) {
		if err != nil {
			return nil, nil, false, err
		}
		switch {
		case m.Key == info.member:
			whole = whole && list == nil
			list = m.Value.Of(raw)
		case m.Key == "nextCursor":
			next = m.Value.Of(raw)
		case strings.EqualFold(m.Key, info.member):
			whole = false
		}
	}
	if list == nil || list[0] != '[' {
		return nil, nil, false, fmt.Errorf("the result has no array %q", info.member)
	}
	if next != nil && (next[0] != '"' || string(next) == `""`) {
		next = nil
	}
	for at, err := range wire.Elements(list) {
		if err != nil {
			return nil, nil, false, err
		}
		it, err := parseItem(info.key, at.Of(list))
		if err != nil {
			whole = false
			continue
		}
		items = append(items, it)
	}
	return items, next, whole, nil
}

var errNoKey = errors.New("the item has no key, or more than one")

func parseItem(key string, raw []byte) (Item, error) {
	it := Item{Raw: raw}
	if raw[0] != '{' {
		return it, errNoKey
	}
	for m, err := range wire.Members(raw) {
		if err != nil {
			return it, err
		}
		if !strings.EqualFold(m.Key, key) {
			continue
		}
		if m.Key != key || it.KeySpan.Present() {
			return it, errNoKey
		}
		it.KeySpan = m.Value
	}
	if !it.KeySpan.Present() {
		return it, errNoKey
	}
	var err error
	it.Key, err = wire.Text(it.KeySpan.Of(raw))
	return it, err
}
