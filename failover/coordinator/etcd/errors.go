// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// refuses reports whether etcd rejected a request because of missing space or permissions. A rejected swap was not
// applied, except possibly with ErrNoSpace (see swapFailed).
func refuses(err error) bool {
	err = rpctypes.Error(err)
	for _, known := range []error{
		rpctypes.ErrNoSpace, rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty,
		rpctypes.ErrAuthFailed,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// cause returns a stable description of an error that an operator must fix, for the node's status. It returns "" for
// any other error.
func cause(err error) string {
	if err == nil {
		return ""
	}
	switch typed := rpctypes.Error(err); {
	case errors.Is(typed, rpctypes.ErrNoSpace):
		return "etcd is out of space (alarm NOSPACE) and rejects writes: compact and defragment it, or raise its " +
			"quota, then disarm the alarm"
	case errors.Is(typed, rpctypes.ErrPermissionDenied):
		return "etcd denies access to the pair's keys: grant the user of coordinator.etcd.username read and write " +
			"permission for coordinator.etcd.prefix"
	case errors.Is(typed, rpctypes.ErrUserEmpty):
		return "etcd requires a user: set coordinator.etcd.username and password"
	case errors.Is(typed, rpctypes.ErrAuthFailed):
		return "etcd rejects the user or password: check coordinator.etcd.username and password"
	}
	// Handshake errors are only available as text.
	text := err.Error()
	for _, t := range []struct{ has, means string }{
		{
			"certificate signed by unknown authority",
			"etcd's certificate was not issued by the CA in coordinator.etcd.tls.ca",
		},
		{"certificate is valid for", "etcd's certificate is for a different name than the one in coordinator.etcd.endpoints"},
		{"cannot validate certificate for", "etcd's certificate does not contain the address in coordinator.etcd.endpoints"},
		{
			"certificate has expired",
			"a certificate has expired or is not valid yet: check the certificates and clocks of etcd and this node",
		},
		{"tls: unknown certificate authority", "etcd does not trust the CA of the certificate in coordinator.etcd.tls.cert"},
		{"tls: bad certificate", "etcd rejects the certificate in coordinator.etcd.tls.cert"},
		{"tls: certificate required", "etcd requires a client certificate: set coordinator.etcd.tls.cert and key"},
		{"first record does not look like a TLS handshake", "etcd does not use TLS, but coordinator.etcd.tls is set"},
		{"error reading server preface", "etcd closes the connection immediately: it may require TLS (coordinator.etcd.tls)"},
	} {
		if strings.Contains(text, t.has) {
			return t.means
		}
	}
	return ""
}

func recordErrors(last *atomic.Value) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if what := cause(err); what != "" {
			last.Store(what)
		}
		return err
	}
}
