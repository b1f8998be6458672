package lowkey_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"lowkey"
	"lowkey/internal/clustertest"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{certificate: certificate, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// sign makes a certificate and its key, both in PEM.
func (a *authority) sign(t *testing.T, name string) (certificate, private []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// gate is a proxy with TLS in front of a node, which may ask for a certificate and for a bearer token.
type gate struct {
	endpoint string
	server   *http.Server
	token    atomic.Value // string; empty: any
	names    chan string  // whom the clients' certificates name
}

func newGate(t *testing.T, node *clustertest.Node, server, clients *authority) *gate {
	t.Helper()
	certificate, key := server.sign(t, "gate")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
	if clients != nil {
		config.ClientCAs = x509.NewCertPool()
		config.ClientCAs.AddCert(clients.certificate)
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	plain := new(http.Protocols)
	plain.SetUnencryptedHTTP2(true)
	target := &url.URL{Scheme: "http", Host: node.GRPC}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{Protocols: plain},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	g := &gate{names: make(chan string, 1000)}
	g.token.Store("")
	g.server = &http.Server{TLSConfig: config, ErrorLog: log.New(io.Discard, "", 0)}
	g.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wanted := g.token.Load().(string); wanted != "" && r.Header.Get("Authorization") != "Bearer "+wanted {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if len(r.TLS.PeerCertificates) > 0 {
			select {
			case g.names <- r.TLS.PeerCertificates[0].Subject.CommonName:
			default:
			}
		}
		forward.ServeHTTP(w, r)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.endpoint = "https://" + listener.Addr().String()
	go func() { _ = g.server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = g.server.Close() })
	return g
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	// As it should be done: a reader sees the old file or the new one.
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestTLS(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	servers, others := newAuthority(t, "servers"), newAuthority(t, "others")
	clients := newAuthority(t, "clients")
	gate := newGate(t, cluster.Nodes[0], servers, clients)
	folder := t.TempDir()
	files := lowkey.TLSFiles{
		CA: filepath.Join(folder, "ca.pem"), Cert: filepath.Join(folder, "client.pem"), Key: filepath.Join(folder, "client.key"),
	}
	certificate, key := clients.sign(t, "alice")
	write(t, files.CA, servers.pem)
	write(t, files.Cert, certificate)
	write(t, files.Key, key)
	soon := lowkey.ConnectTimeout(3 * time.Second)

	client := dial(t, []string{gate.endpoint}, lowkey.TLS(files), lowkey.CallTimeout(5*time.Second))
	s := session(t, client, 5*time.Second)
	guard := lock(t, s, "over-tls")
	if watch, err := client.Watch(t.Context()); err != nil {
		t.Fatal(err)
	} else {
		watch.Close()
	}
	if name := <-gate.names; name != "alice" {
		t.Fatalf("came as %q", name)
	}

	if _, err := lowkey.Dial(t.Context(), []string{gate.endpoint}, lowkey.TLS(lowkey.TLSFiles{CA: files.CA}), soon); err == nil {
		t.Error("came in without a certificate")
	}
	wrong := filepath.Join(folder, "wrong.pem")
	write(t, wrong, others.pem)
	if _, err := lowkey.Dial(t.Context(), []string{gate.endpoint}, lowkey.TLS(lowkey.TLSFiles{CA: wrong, Cert: files.Cert, Key: files.Key}), soon); err == nil {
		t.Error("trusted a server of another authority")
	} else {
		t.Log(err)
	}
	if _, err := lowkey.Dial(t.Context(), []string{"http://" + gate.endpoint[len("https://"):]}, soon); err == nil {
		t.Error("spoke to a port with TLS without it")
	} else {
		t.Log(err)
	}
	for _, bad := range []lowkey.TLSFiles{{CA: files.Key}, {Cert: files.Cert}, {Key: files.Key}, {Cert: files.Key, Key: files.Key}} {
		if _, err := lowkey.Dial(t.Context(), []string{gate.endpoint}, lowkey.TLS(bad)); !errors.Is(err, lowkey.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}

	// New files count for the next connection.
	certificate, key = clients.sign(t, "bob")
	write(t, files.Cert, certificate)
	write(t, files.Key, key)
	_ = dial(t, []string{gate.endpoint}, lowkey.TLS(files))
	for name := range gate.names {
		if name == "bob" {
			break
		}
	}
	if !guard.Held() {
		t.Fatal(guard.Err())
	}
}

func TestBearerTokens(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	servers := newAuthority(t, "servers")
	gate := newGate(t, cluster.Nodes[0], servers, nil)
	gate.token.Store("lk_1_first")
	folder := t.TempDir()
	ca, file := filepath.Join(folder, "ca.pem"), filepath.Join(folder, "token")
	write(t, ca, servers.pem)
	write(t, file, []byte("lk_1_first\n"))
	tlsFiles := lowkey.TLS(lowkey.TLSFiles{CA: ca})

	if _, err := lowkey.Dial(t.Context(), []string{gate.endpoint}, tlsFiles); !errors.Is(err, lowkey.ErrDenied) {
		t.Fatalf("without a token: %v", err)
	}
	t.Setenv("LOWKEY_AUTH_FILE", file)
	t.Setenv("LOWKEY_ENDPOINTS", gate.endpoint)
	client := dial(t, nil, tlsFiles)
	if _, _, err := client.List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	// The token changes on both sides, and is read again. (A file that is empty for a moment changes nothing.)
	write(t, file, nil)
	if _, _, err := client.List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	gate.token.Store("lk_1_second")
	if _, _, err := client.List(t.Context(), ""); !errors.Is(err, lowkey.ErrDenied) {
		t.Fatalf("with the old token: %v", err)
	}
	write(t, file, []byte("lk_1_second"))
	if _, _, err := client.List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(folder, "empty")
	write(t, empty, []byte("two words"))
	if _, err := lowkey.Dial(t.Context(), nil, tlsFiles, lowkey.AuthFile(empty)); !errors.Is(err, lowkey.ErrInvalid) {
		t.Fatalf("%v", err)
	}
}
