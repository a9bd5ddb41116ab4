package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/wire"
)

// Certificates are verified: nothing is sent to a server that has none we trust. With
// one, HTTP/2 is spoken if the server can.
func TestCertificatesAreVerified(t *testing.T) {
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f, err := wire.Parse(body)
		if err != nil || r.ProtoMajor != 2 {
			t.Errorf("the server got %q by %s", body, r.Proto)
		}
		answer(w, typeJSON, result(string(f.ID())))
	}))
	web.EnableHTTP2 = true
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.StartTLS()
	t.Cleanup(web.Close)

	h, err := NewHTTP(HTTPConfig{URL: web.URL})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t, h)
	l.send(t, pinged)
	if m := l.next(t); m.err == nil || !strings.Contains(m.err.Error(), "certificate") || m.sent {
		t.Errorf("got %v, sent %t", m.err, m.sent)
	}
	err = within(t, 10*time.Second, l.result)
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("Run gives %v", err)
	}
	l.result <- err // for the clean-up

	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	transport := NewTransport()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	t.Cleanup(transport.CloseIdleConnections)
	if h, err = NewHTTP(HTTPConfig{URL: web.URL, Transport: transport}); err != nil {
		t.Fatal(err)
	}
	l = listen(t, h)
	l.send(t, pinged)
	if m, _ := l.answer(t, "7"); m.call != "7" {
		t.Errorf("got %v", m)
	}
}
