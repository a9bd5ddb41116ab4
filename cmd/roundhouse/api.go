package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"roundhouse/internal/fault"
	"roundhouse/internal/socket"
	"roundhouse/internal/sse"
	"roundhouse/internal/wire"
)

const defaultURL = "http://127.0.0.1:7420"

// api talks to a running daemon.
type api struct {
	cmd   *cobra.Command // has the flag --url
	token string
	http  *http.Client
}

// remote adds the flags by which a command finds the daemon.
func remote(cmd *cobra.Command) *api {
	cmd.Flags().String("url", environment("ROUNDHOUSE_URL", defaultURL), "the `URL` of the daemon (also ROUNDHOUSE_URL); if none is given its socket is tried first; its token is read from ROUNDHOUSE_TOKEN")
	return daemonOf(cmd)
}

// daemonOf finds the daemon by the flag --url of a command, or where no URL is given, by
// its socket or else at the default URL.
func daemonOf(cmd *cobra.Command) *api {
	a := &api{cmd: cmd, token: os.Getenv("ROUNDHOUSE_TOKEN")}
	given := os.Getenv("ROUNDHOUSE_URL") != ""
	a.http = &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if !given && !cmd.Flags().Changed("url") {
				path := readLocal(os.Getenv("ROUNDHOUSE_CONFIG"), "").config.Socket
				if c, err := socket.Dial(ctx, path); err == nil {
					return c, nil
				}
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}}
	return a
}

func (a *api) do(ctx context.Context, method, path string, header http.Header, body []byte) (*http.Response, error) {
	address := strings.TrimSuffix(cmp.Or(a.cmd.Flag("url").Value.String(), defaultURL), "/")
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	base, err := url.Parse(address)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, usageError{fmt.Errorf("--url must be a URL such as %s", defaultURL)}
	}
	req, err := http.NewRequestWithContext(ctx, method, base.String()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	res, err := a.http.Do(req)
	if err == nil {
		return res, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, fmt.Errorf("wait for the daemon at %s: %w", base.Redacted(), cause)
	}
	return nil, fmt.Errorf("no daemon answers at %s: start one with 'roundhouse serve', or name it with --url (%w)", base.Redacted(), errors.Unwrap(err))
}

// answerWait bounds the wait for an answer that the daemon has at hand.
const answerWait = 30 * time.Second

// get reads a resource of the API into v, which may be a *json.RawMessage.
func (a *api) get(ctx context.Context, path string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	return a.send(ctx, http.MethodGet, path, v)
}

// send makes a request of the API and reads the answer into v, if there is one.
func (a *api) send(ctx context.Context, method, path string, v any) error {
	return a.sendJSON(ctx, method, path, nil, v)
}

// sendJSON is send with a body.
func (a *api) sendJSON(ctx context.Context, method, path string, body []byte, v any) error {
	res, err := a.do(ctx, method, path, nil, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK, http.StatusCreated:
	case http.StatusNoContent:
		return nil
	default:
		return apiError(res)
	}
	if err := json.NewDecoder(res.Body).Decode(v); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	return nil
}

// remoteError is what the daemon said was wrong.
type remoteError struct {
	reason  fault.Reason
	message string
}

func (e *remoteError) Error() string { return e.message }

// apiError reads an error of the API, or of its MCP endpoint.
func apiError(res *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("the daemon answered %s: %w", res.Status, err)
	}
	var e struct {
		Error struct {
			Message string
			Reason  fault.Reason
			Data    struct{ Reason fault.Reason }
		}
	}
	if json.Unmarshal(b, &e) != nil || e.Error.Message == "" {
		return fmt.Errorf("the daemon answered %s", res.Status)
	}
	if res.StatusCode == http.StatusUnauthorized {
		e.Error.Message = "the daemon wants a token: set ROUNDHOUSE_TOKEN to one of its auth.tokens (" + e.Error.Message + ")"
	}
	return &remoteError{cmp.Or(e.Error.Reason, e.Error.Data.Reason), e.Error.Message}
}

// mcp is one MCP client of the daemon: a handshake and calls, one at a time.
type mcp struct {
	api  *api
	path string
	id   string
	next int
	told func(wire.Frame) // takes what comes before an answer; nil drops it
}

// rpcError is a JSON-RPC error.
type rpcError struct {
	Code    int
	Message string
}

func (e *rpcError) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// dialMCP opens a client of a server, or with "" of all together, in a session of its
// own. Close it.
func (a *api) dialMCP(ctx context.Context, server string) (*mcp, error) {
	m := &mcp{api: a, path: "/mcp"}
	if server != "" {
		m.path += "/" + url.PathEscape(server)
	}
	params := fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"roundhouse","version":%q}}`, wire.LegacyVersions[0], currentVersion())
	if _, err := m.call(ctx, wire.MethodInitialize, []byte(params)); err != nil {
		if e, ok := errors.AsType[*remoteError](err); ok && e.reason == fault.UnknownServer {
			var known json.RawMessage
			if better := a.get(ctx, "/api/v1/servers/"+url.PathEscape(server), &known); better != nil {
				err = better // it names all servers
			}
		}
		return nil, err
	}
	res, err := m.post(ctx, wire.NewNotification(wire.Initialized, nil))
	if err != nil {
		return nil, err
	}
	return m, res.Body.Close()
}

func (m *mcp) post(ctx context.Context, body []byte) (*http.Response, error) {
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if m.id != "" {
		h.Set("Mcp-Session-Id", m.id)
		h.Set("Mcp-Protocol-Version", wire.LegacyVersions[0])
	}
	res, err := m.api.do(ctx, http.MethodPost, m.path, h, body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode/100 != 2 {
		defer res.Body.Close()
		return nil, apiError(res)
	}
	if id := res.Header.Get("Mcp-Session-Id"); id != "" {
		m.id = id
	}
	return res, nil
}

// call makes a request and returns its raw result.
func (m *mcp) call(ctx context.Context, method string, params []byte) (json.RawMessage, error) {
	m.next++
	id := fmt.Append(nil, m.next)
	res, err := m.post(ctx, wire.NewRequest(id, method, params))
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		return answerOf(body)
	}
	for events := sse.NewReader(res.Body, wire.MaxFrame); ; {
		e, err := events.Next()
		if err != nil {
			return nil, fmt.Errorf("the daemon closed the stream without an answer: %w", err)
		}
		f, err := wire.Parse(e.Data)
		switch {
		case err != nil:
		case f.Kind == wire.Response && bytes.Equal(f.ID(), id):
			return answerOf(e.Data)
		case m.told != nil:
			m.told(f)
		}
	}
}

func answerOf(raw []byte) (json.RawMessage, error) {
	f, err := wire.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if f.ErrorSpan.Present() {
		e := &rpcError{}
		if err := json.Unmarshal(f.ErrorValue(), e); err != nil {
			return nil, fmt.Errorf("read the answer's error: %w", err)
		}
		return nil, e
	}
	return f.Result(), nil
}

// close ends the client at the daemon.
func (m *mcp) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if res, err := m.api.do(ctx, http.MethodDelete, m.path, http.Header{"Mcp-Session-Id": {m.id}}, nil); err == nil {
		_ = res.Body.Close() // a session that is not ended so ends by itself
	}
}
