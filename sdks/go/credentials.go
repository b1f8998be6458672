package lowkey

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// TLSFiles are the files of TLS, in PEM. They are read again when they have changed, for each new connection.
type TLSFiles struct {
	// CA has the certificates that nodes' certificates are checked against. Empty: those of the system.
	CA string
	// Cert and Key are the client's own certificate and key, where nodes ask for one. Both or neither.
	Cert, Key string
}

// TLS sets the files of TLS. It is used for endpoints that begin with https://.
func TLS(files TLSFiles) Option {
	return func(options *clientOptions) { options.tls = files }
}

// AuthFile names a file with a bearer token, which is sent along with every call. It is read again when it has
// changed. Without this option the environment variable LOWKEY_AUTH_FILE names it.
func AuthFile(path string) Option {
	return func(options *clientOptions) { options.authFile = path }
}

func newDialer(options *clientOptions) (*dialer, error) {
	state := &tlsState{
		files: options.tls, roots: watchedFile[*x509.CertPool]{path: options.tls.CA, parse: parseRoots},
	}
	if (options.tls.Cert == "") != (options.tls.Key == "") {
		return nil, invalid("a certificate needs its key, and a key its certificate")
	}
	if _, err := state.config(""); err != nil {
		return nil, invalid("%v", err)
	}
	d := &dialer{tls: &tlsCredentials{state: state}}
	if options.authFile != "" {
		d.auth = &tokenFile{file: watchedFile[string]{path: options.authFile, parse: parseToken}}
		if _, err := d.auth.file.read(); err != nil {
			return nil, invalid("%v", err)
		}
	}
	return d, nil
}

// watchedFile is a file that is read again when it has changed.
type watchedFile[T any] struct {
	path  string
	parse func([]byte) (T, error)

	mu      sync.Mutex
	isRead  bool
	changed time.Time
	size    int64
	value   T
}

// read gives what the file says. If the file has become unreadable or wrong, what it said before still counts: it
// may be in the middle of being replaced.
func (f *watchedFile[T]) read() (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err == nil && f.isRead && info.ModTime().Equal(f.changed) && info.Size() == f.size {
		return f.value, nil
	}
	var value T
	if err == nil {
		var bytes []byte
		if bytes, err = os.ReadFile(f.path); err == nil {
			value, err = f.parse(bytes)
		}
	}
	if err != nil {
		if f.isRead {
			return f.value, nil
		}
		return value, fmt.Errorf("%s: %w", f.path, err)
	}
	f.isRead, f.changed, f.size, f.value = true, info.ModTime(), info.Size(), value
	return value, nil
}

// tokenFile gives the bearer token of each call.
type tokenFile struct {
	file watchedFile[string]
}

func parseToken(bytes []byte) (string, error) {
	token := strings.TrimSpace(string(bytes))
	isPrintable := strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
	if token == "" || !isPrintable {
		// Never the text itself: it is a secret.
		return "", fmt.Errorf("has no bearer token: one line of printable ASCII without spaces")
	}
	return token, nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t *tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := t.file.read()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. It is the program that chose the endpoints: on
// loopback, and behind a proxy that encrypts, http:// is right.
func (t *tokenFile) RequireTransportSecurity() bool { return false }

// tlsState is what the credentials of all connections share: the files as they were when they were last right.
type tlsState struct {
	files TLSFiles
	roots watchedFile[*x509.CertPool]

	mu   sync.Mutex
	pair *tls.Certificate
}

// config is the configuration of one connection, with the files as they are now.
func (s *tlsState) config(serverName string) (*tls.Config, error) {
	config := &tls.Config{ServerName: serverName, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	if s.files.CA != "" {
		roots, err := s.roots.read()
		if err != nil {
			return nil, err
		}
		config.RootCAs = roots
	}
	if s.files.Cert != "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		pair, err := tls.LoadX509KeyPair(s.files.Cert, s.files.Key)
		switch {
		case err == nil:
			s.pair = &pair
		case s.pair == nil:
			return nil, fmt.Errorf("%s and %s: %w", s.files.Cert, s.files.Key, err)
		}
		// If only one of the two is replaced by now, the old pair still counts.
		config.Certificates = []tls.Certificate{*s.pair}
	}
	return config, nil
}

func parseRoots(pem []byte) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("has no certificate in PEM")
	}
	return roots, nil
}

// tlsCredentials makes each connection with the files as they are then.
type tlsCredentials struct {
	state *tlsState
	name  string
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *tlsCredentials) ClientHandshake(
	ctx context.Context, authority string, connection net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	config, err := c.state.config(c.name)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, connection)
}

// ServerHandshake implements credentials.TransportCredentials. Clients have no use for it.
func (c *tlsCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("lowkey: these credentials are a client's")
}

// Info implements credentials.TransportCredentials.
func (c *tlsCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (c *tlsCredentials) Clone() credentials.TransportCredentials {
	return &tlsCredentials{state: c.state, name: c.name}
}

// OverrideServerName implements credentials.TransportCredentials.
func (c *tlsCredentials) OverrideServerName(name string) error {
	c.name = name
	return nil
}
