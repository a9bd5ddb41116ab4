// Package relay is what a shim and the daemon say to each other (H8): a request to
// /relay or /relay/{server} turns its HTTP/1.1 connection into a line of frames in both
// directions, in the framing of MCP's stdio transport. Both ends use this package.
package relay

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Protocol is the value of the header Upgrade.
const Protocol = "roundhouse-relay"

// The headers of the request and of the answer 101. Paths and names are escaped as
// in a URL's path.
const (
	// SessionHeader names the session in the request, if the shim was given one. In the
	// answer it is the session that a handshake on this line enters.
	SessionHeader = "X-Session-Id"
	// ResumeHeader names, in the request, the session of an earlier line that was lost;
	// it is entered again if it still lives.
	ResumeHeader = "X-Roundhouse-Resume"
	// WorkspaceHeader is the directory that the shim works in.
	WorkspaceHeader = "X-Roundhouse-Workspace"
	// ClientHeader says for people who started the shim.
	ClientHeader = "X-Roundhouse-Client"
	// ConfigHeader is, in an answer to an admin, the daemon's configuration file.
	ConfigHeader = "X-Roundhouse-Config"
)

// openTimeout bounds how long the daemon may take to answer the request.
const openTimeout = 10 * time.Second

// Refusal is the daemon's answer when it does not open a line.
type Refusal struct {
	Status  int
	Message string
}

// Error returns what the daemon said.
func (e *Refusal) Error() string { return e.Message }

// Path returns the path of a server's line, or with "" of the aggregate's.
func Path(server string) string {
	if server == "" {
		return "/relay"
	}
	return "/relay/" + url.PathEscape(server)
}

// Open asks for a line on a fresh connection to host. The frames that the daemon
// sends are to be read from the reader that it returns. When it fails, because the
// daemon refuses (*Refusal) or does not answer in time, the connection is of no more
// use; it is the caller's to close in any case.
func Open(conn net.Conn, host, path string, header http.Header) (*bufio.Reader, http.Header, error) {
	if err := conn.SetDeadline(time.Now().Add(openTimeout)); err != nil {
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n", path, host, Protocol)
	if err := header.Write(&b); err != nil {
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	b.WriteString("\r\n")
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	r := bufio.NewReaderSize(conn, BufferSize)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("open a line: read the daemon's answer: %w", err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		return nil, nil, refusal(res)
	}
	if !strings.EqualFold(res.Header.Get("Upgrade"), Protocol) {
		return nil, nil, &Refusal{res.StatusCode, "open a line: what answers is no roundhouse daemon that knows shims; is the URL right, and the daemon up to date?"}
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	return r, res.Header, nil
}

// refusal reads an error of roundhouse's API; anything else is told by its status.
func refusal(res *http.Response) *Refusal {
	defer res.Body.Close()
	var e struct{ Error struct{ Message string } }
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil {
		e.Error.Message = ""
	}
	return &Refusal{res.StatusCode, cmp.Or(e.Error.Message, "the daemon answered "+res.Status)}
}
