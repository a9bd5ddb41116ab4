package loop

import "encoding/json"

// album holds what tools have shown the model, of which it sees the newest pictures (A2,
// X9).
type album struct {
	most  int
	pages []*page // the older ones first
}

// page is what the tools of one turn have shown, as parts of a message.
type page struct {
	parts    []json.RawMessage
	pictures int // of the parts, at the end
	word     func(string) json.RawMessage
}

// haveShown begins what tools have shown.
const haveShown = "What the tools have shown:"

func newAlbum(most int) *album { return &album{most: most} }

// add adds the pictures of a turn's results as parts that word and picture make, and returns
// them, or nil if there are none. Of older ones that are too many words remain.
func (a *album) add(results []*result, word func(string) json.RawMessage, picture func(Picture) json.RawMessage) *page {
	p := &page{parts: []json.RawMessage{word(haveShown)}, word: word}
	for _, res := range results {
		for _, shown := range res.pictures {
			p.parts = append(p.parts, picture(shown))
			p.pictures++
		}
	}
	if p.pictures == 0 {
		return nil
	}
	a.pages = append(a.pages, p)
	left := a.most
	for i := len(a.pages) - 1; i >= 0; i-- {
		left = a.pages[i].keep(left)
	}
	return p
}

// keep keeps the page's newest pictures, and returns how many may be kept of older pages.
func (p *page) keep(most int) (left int) {
	for p.pictures > most {
		p.parts[len(p.parts)-p.pictures] = p.word("(an earlier picture, which is not shown any more)")
		p.pictures--
	}
	return most - p.pictures
}
