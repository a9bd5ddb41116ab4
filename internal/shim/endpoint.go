package shim

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"roundhouse/internal/relay"
	"roundhouse/internal/socket"
)

// Endpoint says where the daemon is and what it is told of us. It is constant; files
// that it names are read for each dial.
type Endpoint struct {
	Socket    string // path of the unix socket; used if URL is ""
	URL       string // of a remote daemon, http or https
	Token     string // for URL; "" is none
	TokenFile string // for URL, with the token in it; wins over Token
	Server    string // "" is the aggregate
	Session   string // its name, or "" for one of our own
	Workspace string // the directory that we work in, or ""
	Client    string // who started us, for people
	Config    string // the file that the daemon must serve, if it tells, or "" for any
}

// Dial opens a line, for Config.Dial.
func (e *Endpoint) Dial(ctx context.Context, resume string) (*Line, error) {
	header := http.Header{}
	set := func(name, value string) {
		if value != "" {
			header.Set(name, value)
		}
	}
	set(relay.WorkspaceHeader, url.PathEscape(e.Workspace))
	set(relay.ClientHeader, url.PathEscape(e.Client))
	set(relay.SessionHeader, e.Session)
	if e.Session == "" {
		set(relay.ResumeHeader, resume)
	}
	token, err := e.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	conn, host, base, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	in, answer, err := e.open(ctx, conn, host, base, header)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Line{Conn: conn, In: in, Session: answer.Get(relay.SessionHeader)}, nil
}

func (e *Endpoint) open(ctx context.Context, conn net.Conn, host, base string, header http.Header) (*bufio.Reader, http.Header, error) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	in, answer, err := relay.Open(conn, host, base+relay.Path(e.Server), header)
	if err != nil {
		return nil, nil, err
	}
	return in, answer, e.checkConfig(answer)
}

func (e *Endpoint) token() (string, error) {
	if e.URL == "" {
		return "", nil // the socket itself says who we are
	}
	if e.TokenFile == "" {
		return e.Token, nil
	}
	b, err := os.ReadFile(e.TokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// connect reaches the daemon. host and base are for the request.
func (e *Endpoint) connect(ctx context.Context) (conn net.Conn, host, base string, err error) {
	if e.URL == "" {
		conn, err = socket.Dial(ctx, e.Socket)
		return conn, "localhost", "", err
	}
	u, err := url.Parse(e.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, "", "", fmt.Errorf("%q is no URL of a daemon, such as https://tools.example", e.URL)
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme // a name that the dialer knows
	}
	address := net.JoinHostPort(u.Hostname(), port)
	if u.Scheme == "https" {
		conn, err = (&tls.Dialer{Config: &tls.Config{NextProtos: []string{"http/1.1"}}}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = socket.ErrNobody
	}
	if err != nil {
		err = fmt.Errorf("dial %s: %w", u.Redacted(), err)
	}
	return conn, u.Host, strings.TrimSuffix(u.EscapedPath(), "/"), err
}

// checkConfig refuses a daemon that serves another file than the one we were told:
// its servers of the same names may be other ones.
func (e *Endpoint) checkConfig(answer http.Header) error {
	theirs, err := url.PathUnescape(answer.Get(relay.ConfigHeader))
	if err != nil || theirs == "" || e.Config == "" || filepath.Clean(theirs) == filepath.Clean(e.Config) {
		return nil
	}
	a, errA := os.Stat(theirs)
	b, errB := os.Stat(e.Config)
	if errA == nil && errB == nil && os.SameFile(a, b) {
		return nil
	}
	return fmt.Errorf(`the daemon at %s serves %s, not %s: stop it, or give the file a daemon of its own with "socket" in it or --socket`, e.Socket, theirs, e.Config)
}
