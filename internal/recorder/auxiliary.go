package recorder

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"roundhouse/internal/dialect"
	"roundhouse/internal/front"
	"roundhouse/internal/model"
	"roundhouse/internal/wire"
)

// forward has a request that is no generation sent as it is, less what names a session
// (C1).
func (x *exchange) forward() (*model.Answer, error) {
	msg := model.Message{Method: x.r.Method, Path: x.path, RawQuery: x.r.URL.RawQuery, Header: x.r.Header}
	name, session := x.modelInPath(), ""
	switch {
	case x.r.ContentLength == 0:
	case x.isUpload():
		// It may be long and nothing in it is ours. The client may still be sending when
		// the answer comes (C16).
		msg.Body, msg.Length = x.r.Body, x.r.ContentLength
		_ = http.NewResponseController(x.w).EnableFullDuplex() // HTTP/2 is always
	default:
		body, release, err := x.body()
		if err != nil {
			return nil, err
		}
		defer release()
		if body, session, err = dialect.CutSession(body); err != nil {
			return nil, refuse(http.StatusBadRequest, "%v", err)
		}
		if name == "" {
			name = modelInBody(body)
		}
		msg.Body, msg.Length = bytes.NewReader(body), int64(len(body))
	}
	if _, err := front.SessionName(x.r, session); err != nil {
		return nil, err
	}
	if x.r.Method == http.MethodGet && x.isModelList() && len(x.cfg.Models.Upstreams()) > 1 {
		return nil, x.listModels(msg)
	}
	u, err := x.cfg.Models.Choose(x.api, name)
	if err != nil {
		return nil, err
	}
	return x.cfg.Models.Forward(x.r.Context(), u, msg)
}

// isUpload reports whether the body is something else than JSON.
func (x *exchange) isUpload() bool {
	media, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
	return err == nil && !strings.HasSuffix(media, "json") && !strings.HasPrefix(media, "text/") && media != "application/x-www-form-urlencoded"
}

func (x *exchange) isModelList() bool { return strings.Trim(x.path, "/") == "v1/models" }

// modelInPath returns the model that /v1/models/NAME names, or "".
func (x *exchange) modelInPath() string {
	escaped, ok := strings.CutPrefix(strings.TrimLeft(x.path, "/"), "v1/models/")
	if !ok {
		return ""
	}
	name, err := url.PathUnescape(escaped)
	if err != nil {
		return ""
	}
	return name
}

// modelInBody returns the model that a JSON body names, or "".
func modelInBody(body []byte) string {
	if wire.Valid(body) != nil || bytes.TrimLeft(body, " \t\r\n")[0] != '{' {
		return ""
	}
	for m, err := range wire.Members(body) {
		if err == nil && m.Key == "model" {
			name, _ := wire.Text(m.Value.Of(body))
			return name
		}
	}
	return ""
}

// listModels answers with the models of all upstreams (C12). Those that do not answer
// are left out, unless none does.
func (x *exchange) listModels(msg model.Message) error {
	upstreams := x.cfg.Models.Upstreams()
	lists, errs := make([][]json.RawMessage, len(upstreams)), make([]error, len(upstreams))
	var wg sync.WaitGroup
	for i, u := range upstreams {
		wg.Go(func() { lists[i], errs[i] = x.modelsOf(u, msg) })
	}
	wg.Wait()
	all, seen, answered := []json.RawMessage{}, map[string]bool{}, false
	for i, list := range lists {
		if errs[i] != nil {
			x.log.Warn("an upstream does not list its models", "upstream", upstreams[i].Name(), "err", errs[i])
			continue
		}
		answered = true
		for _, entry := range list {
			var m struct {
				ID string `json:"id"`
			}
			if json.Unmarshal(entry, &m) == nil && !seen[m.ID] {
				seen[m.ID] = true
				all = append(all, entry)
			}
		}
	}
	if !answered {
		return errs[0]
	}
	front.WriteJSON(x.w, http.StatusOK, map[string]any{"object": "list", "data": all, "has_more": false, "first_id": nil, "last_id": nil})
	return nil
}

// maxList is how long the list of an upstream's models may be, in bytes.
const maxList = 16 << 20

func (x *exchange) modelsOf(u *model.Upstream, msg model.Message) ([]json.RawMessage, error) {
	msg.Header = msg.Header.Clone()
	msg.Header.Del("Accept-Encoding")
	answer, err := x.cfg.Models.Forward(x.r.Context(), u, msg)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	body, err := io.ReadAll(io.LimitReader(answer, maxList))
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil || answer.Status != http.StatusOK {
		return nil, refuse(http.StatusBadGateway, "the upstream %q does not list its models", u.Name())
	}
	return list.Data, nil
}
