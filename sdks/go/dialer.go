package lowkey

import (
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// connectTime is how long one node may take to answer before the next is tried.
const connectTime = time.Second

// dialer opens connections to nodes.
type dialer struct {
	tls  credentials.TransportCredentials
	auth *tokenFile // nil: without
}

// connection prepares a connection to a node. It is made with the first call.
func (d *dialer) connection(endpoint string) (*grpc.ClientConn, error) {
	scheme, address, _ := strings.Cut(endpoint, "://")
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		// This package retries by itself, with the same request id.
		grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTime}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
		grpc.WithInitialWindowSize(1 << 20),
		grpc.WithInitialConnWindowSize(1 << 21),
		// An answer may be larger than what gRPC takes by default: a page of a thousand locks with their values.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)),
	}
	if scheme == "https" {
		options = append(options, grpc.WithTransportCredentials(d.tls))
	}
	if d.auth != nil {
		options = append(options, grpc.WithPerRPCCredentials(d.auth))
	}
	return grpc.NewClient("passthrough:///"+address, options...)
}

// checkEndpoint tells what is wrong with an endpoint.
func checkEndpoint(endpoint string) error {
	parsed, err := url.Parse(endpoint)
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Hostname() == "" {
		return invalid("%q is no URL such as http://127.0.0.1:9000", endpoint)
	}
	if parsed.Port() == "" {
		return invalid("%s has no port: the gRPC port of a node is 9000 by default", endpoint)
	}
	if strings.TrimSuffix(endpoint, "/") != parsed.Scheme+"://"+parsed.Host {
		return invalid("%s has more than scheme, host and port, such as http://127.0.0.1:9000", endpoint)
	}
	return nil
}

// likeEndpoint is the URL of another node of the same cluster, with the same scheme.
func likeEndpoint(endpoint, address string) string {
	scheme, _, _ := strings.Cut(endpoint, "://")
	return scheme + "://" + address
}

// fromTransport is the error of a status that the service did not give.
func fromTransport(known *status.Status, isSent bool) *Error {
	problem := unavailable(known.Message(), isSent)
	switch {
	case known.Code() == codes.Unimplemented:
		problem.Message = "a gRPC server, but none of lowkey: is it the gRPC port of a node? that is 9000 by default"
		problem.Reason = reasonNoSuchRoute
	case known.Code() == codes.Unauthenticated || known.Code() == codes.PermissionDenied:
		problem.kind = ErrDenied
	case known.Code() == codes.DeadlineExceeded:
		problem.Message = "does not answer"
	}
	return problem
}
